// Functions of libcudart.so.13 that the fake GPU does not have: CUDA graphs, memory pools, memory of other processes. Apart
// from cudart.cpp, because their declarations are not needed: the answer is the same for all.
namespace {
constexpr int kNotSupported = 801;  // cudaErrorNotSupported
}

#define DDPRUN_NOT_SUPPORTED(name) \
  int name() { return kNotSupported; }

extern "C" {
DDPRUN_NOT_SUPPORTED(cudaDeviceGetDefaultMemPool)
DDPRUN_NOT_SUPPORTED(cudaGetSymbolAddress)
DDPRUN_NOT_SUPPORTED(cudaGraphDebugDotPrint)
DDPRUN_NOT_SUPPORTED(cudaGraphDestroy)
DDPRUN_NOT_SUPPORTED(cudaGraphExecDestroy)
DDPRUN_NOT_SUPPORTED(cudaGraphGetNodes)
DDPRUN_NOT_SUPPORTED(cudaGraphInstantiateWithFlags)
DDPRUN_NOT_SUPPORTED(cudaGraphLaunch)
DDPRUN_NOT_SUPPORTED(cudaGraphNodeGetDependencies)
DDPRUN_NOT_SUPPORTED(cudaIpcCloseMemHandle)
DDPRUN_NOT_SUPPORTED(cudaIpcGetEventHandle)
DDPRUN_NOT_SUPPORTED(cudaIpcGetMemHandle)
DDPRUN_NOT_SUPPORTED(cudaIpcOpenEventHandle)
DDPRUN_NOT_SUPPORTED(cudaIpcOpenMemHandle)
DDPRUN_NOT_SUPPORTED(cudaMemPoolGetAttribute)
DDPRUN_NOT_SUPPORTED(cudaMemPoolSetAccess)
DDPRUN_NOT_SUPPORTED(cudaMemPoolSetAttribute)
DDPRUN_NOT_SUPPORTED(cudaMemPoolTrimTo)
DDPRUN_NOT_SUPPORTED(cudaMemcpyToSymbol)
DDPRUN_NOT_SUPPORTED(cudaStreamBeginCapture)
DDPRUN_NOT_SUPPORTED(cudaStreamEndCapture)
}
