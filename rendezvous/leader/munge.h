// MUNGE, the authentication service of clusters: a process gets a credential from its node's munged,
// and any other node's munged tells who made it. The library libmunge.so.2 is loaded when this is
// made, so a job that does not use it does not pay for it. (Not the programs munge and unmunge: a
// process for each proof costs a leader of 10,000 nodes half a minute.)
//
// Const calls: any thread, also several at once. They block until munged has answered; if it hangs,
// for some seconds.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "rendezvous/common/result.h"

namespace ddprun::rdzv {

inline constexpr const char* kMungeLibrary = "libmunge.so.2";

class Munge {
 public:
  // Tries it once, by a credential of our own. An Error: it cannot be used on this node, and why.
  static Result<std::shared_ptr<const Munge>> find(const std::string& library = kMungeLibrary);

  // A credential with these contents, which only a process of this user on the cluster can read.
  virtual Result<std::string> encode(std::string_view contents) const = 0;
  // The contents of a credential; kPermissionDenied if another user made it.
  virtual Result<std::string> decode(const std::string& credential) const = 0;

  virtual ~Munge() = default;
};

}  // namespace ddprun::rdzv
