// An NCCL that has none of the functions which LibTorch calls, as one of another major version would.
extern "C" int ncclGetVersion(int* version) {
  *version = 30000;
  return 0;
}
