"""From a program and a schedule to what each kernel does: binding, the passes, and the one enumerator of tiles."""
