"""The intermediate representation: frozen values, equal when they mean the same (locations are not compared)."""
