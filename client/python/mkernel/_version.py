"""The version of this package. CMake refuses to configure when it is not the project's."""

__version__ = "0.1.0"
