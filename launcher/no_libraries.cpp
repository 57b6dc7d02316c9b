// For a program that is linked statically, in place of the C library's functions of these names (--wrap): a static glibc
// loads only libraries of its own version, which is that of the machine where it was linked, so here it loads none. Who
// needs one goes to ddprun-dynamic (launcher/plan/system_libraries.h).
#include <netdb.h>

// NOLINTBEGIN(bugprone-reserved-identifier): the linker's names.
extern "C" {

void* __wrap_dlopen(const char*, int) { return nullptr; }
void* __wrap_dlsym(void*, const char*) { return nullptr; }
int __wrap_dlclose(void*) { return 0; }

// glibc's would load name services.
int __wrap_getaddrinfo(const char*, const char*, const addrinfo*, addrinfo**) { return EAI_FAIL; }
void __wrap_freeaddrinfo(addrinfo*) {}
int __wrap_getnameinfo(const sockaddr*, socklen_t, char*, socklen_t, char*, socklen_t, int) {
  return EAI_FAIL;
}
}
// NOLINTEND(bugprone-reserved-identifier)
