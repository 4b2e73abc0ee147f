"""What runs kernels: the device library, symmetric memory and launches. torch and triton are imported only here."""
