"""Front ends: the text languages and the Python decorator, from source to IR."""
