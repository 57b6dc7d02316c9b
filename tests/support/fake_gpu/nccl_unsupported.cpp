// Functions of libnccl.so.2 that the fake GPU does not have, of the versions of PyTorch 2.11 and 2.15. Apart from nccl.cpp, because
// their declarations are not needed, and not all are in the headers of each version: the answer is the same for all.
namespace {
constexpr int kInvalidUsage = 5;  // ncclInvalidUsage
}

#define DDPRUN_NOT_SUPPORTED(name) \
  int name() { return kInvalidUsage; }

extern "C" {
DDPRUN_NOT_SUPPORTED(ncclCommGetUniqueId)
DDPRUN_NOT_SUPPORTED(ncclCommGrow)
DDPRUN_NOT_SUPPORTED(ncclCommInitAll)
DDPRUN_NOT_SUPPORTED(ncclCommMemStats)
DDPRUN_NOT_SUPPORTED(ncclCommResume)
DDPRUN_NOT_SUPPORTED(ncclCommShrink)
DDPRUN_NOT_SUPPORTED(ncclCommSplit)
DDPRUN_NOT_SUPPORTED(ncclCommSuspend)
DDPRUN_NOT_SUPPORTED(ncclCommWindowDeregister)
DDPRUN_NOT_SUPPORTED(ncclCommWindowRegister)
DDPRUN_NOT_SUPPORTED(ncclDevCommCreate)
DDPRUN_NOT_SUPPORTED(ncclDevCommDestroy)
DDPRUN_NOT_SUPPORTED(ncclGather)
DDPRUN_NOT_SUPPORTED(ncclGetLsaMultimemDevicePointer)
DDPRUN_NOT_SUPPORTED(ncclGetPeerDevicePointer)
DDPRUN_NOT_SUPPORTED(ncclGroupSimulateEnd)
DDPRUN_NOT_SUPPORTED(ncclPutSignal)
DDPRUN_NOT_SUPPORTED(ncclRedOpCreatePreMulSum)
DDPRUN_NOT_SUPPORTED(ncclRedOpDestroy)
DDPRUN_NOT_SUPPORTED(ncclSignal)
DDPRUN_NOT_SUPPORTED(ncclWaitSignal)
DDPRUN_NOT_SUPPORTED(ncclWinGetUserPtr)
}
