// LD_PRELOAD into a Python program: a thread of PyTorch's that runs calls over Gloo keeps for 5 ms the lock under which it
// enters the interpreter, so that a fork at this moment is no rare one (worker_lib/python/ddprun/loading.py).
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>

#include <chrono>
#include <string_view>

extern "C" int sem_post(sem_t* semaphore) {
  static const auto post = reinterpret_cast<int (*)(sem_t*)>(::dlsym(RTLD_NEXT, "sem_post"));
  char name[16] = {};
  if (::pthread_getname_np(::pthread_self(), name, sizeof name) == 0 &&
      std::string_view(name) == "pt_gloo_runloop") {
    // As one that waits for a processor, not asleep.
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
    while (std::chrono::steady_clock::now() < end) continue;
  }
  return post(semaphore);
}
