// Our store server in a separate process (store_host), for tests that measure its memory or need
// all descriptors themselves. The process ends with the object.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace ddprun::rdzv::testing {

class StoreProcess {
 public:
  // `file_limit`: its RLIMIT_NOFILE; `address_space`: its RLIMIT_AS; 0 for the maximum allowed.
  explicit StoreProcess(unsigned file_limit = 0, std::size_t address_space = 0);
  ~StoreProcess();
  StoreProcess(const StoreProcess&) = delete;

  std::uint16_t port() const { return port_; }
  pid_t pid() const { return pid_; }
  std::size_t resident_bytes() const;

 private:
  pid_t pid_ = -1;
  int stdin_ = -1;
  std::uint16_t port_ = 0;
};

}  // namespace ddprun::rdzv::testing
