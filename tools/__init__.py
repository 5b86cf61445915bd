"""Scripts that change the code: modules are moved and symbols renamed, with everything that names them."""
