/* A stand-in for GDRCopy over memory of the host: the mapping of a buffer is the buffer. For tests only. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAPPINGS 4096

typedef struct gdr *gdr_t;
typedef struct { unsigned long h; } gdr_mh_t;
typedef struct {
    uint64_t va, mapped_size;
    uint32_t page_size;
    uint64_t tm_cycles;
    uint32_t cycles_per_ms;
    unsigned mapped : 1, wc_mapping : 1;
    int mapping_type;
} gdr_info_t;

static struct { uint64_t address, size; } pinned[MAPPINGS];
static unsigned long count = 1;

gdr_t gdr_open(void) { return malloc(8); }
int gdr_close(gdr_t g) { free(g); return 0; }

int gdr_pin_buffer(gdr_t g, unsigned long address, size_t size, uint64_t token, uint32_t space, gdr_mh_t *handle) {
    unsigned long at = __sync_fetch_and_add(&count, 1) % MAPPINGS;
    (void)g, (void)token, (void)space;
    pinned[at].address = address;
    pinned[at].size = size;
    handle->h = at;
    return 0;
}

int gdr_pin_buffer_v2(gdr_t g, unsigned long address, size_t size, uint32_t flags, gdr_mh_t *handle) {
    return gdr_pin_buffer(g, address, size, 0, flags, handle);
}

int gdr_unpin_buffer(gdr_t g, gdr_mh_t handle) { (void)g, (void)handle; return 0; }

int gdr_get_info(gdr_t g, gdr_mh_t handle, gdr_info_t *info) {
    (void)g;
    memset(info, 0, sizeof *info);
    info->va = pinned[handle.h].address;
    info->mapped_size = pinned[handle.h].size;
    info->page_size = 65536;
    info->mapped = 1;
    return 0;
}

int gdr_get_info_v2(gdr_t g, gdr_mh_t handle, gdr_info_t *info) { return gdr_get_info(g, handle, info); }

int gdr_map(gdr_t g, gdr_mh_t handle, void **mapping, size_t size) {
    (void)g, (void)size;
    *mapping = (void *)pinned[handle.h].address;
    return 0;
}

int gdr_unmap(gdr_t g, gdr_mh_t handle, void *mapping, size_t size) {
    (void)g, (void)handle, (void)mapping, (void)size;
    return 0;
}

int gdr_copy_to_mapping(gdr_mh_t handle, void *to, const void *from, size_t size) {
    (void)handle;
    memcpy(to, from, size);
    return 0;
}

int gdr_copy_from_mapping(gdr_mh_t handle, void *to, const void *from, size_t size) {
    (void)handle;
    memcpy(to, from, size);
    return 0;
}

void gdr_runtime_get_version(int *major, int *minor) { *major = 2; *minor = 4; }
int gdr_driver_get_version(gdr_t g, int *major, int *minor) { (void)g; *major = 2; *minor = 4; return 0; }
