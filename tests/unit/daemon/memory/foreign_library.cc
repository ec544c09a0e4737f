// A shared object that defines nothing the loader of the GPU module looks for.
extern "C" int foreign_library() {
  return 1;
}
