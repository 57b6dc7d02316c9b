// A preloaded library that makes every lookup of a name that ends in ".silent" wait for ever, like
// a name server that does not answer.
#include <dlfcn.h>
#include <netdb.h>
#include <unistd.h>

#include <string_view>

extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints,
                           addrinfo** list) {
  while (name != nullptr && std::string_view(name).ends_with(".silent")) pause();
  static const auto function =
      reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  return function(name, service, hints, list);
}
