import tests.vision  # noqa: F401  # Lightning imports torchvision, where it is installed
