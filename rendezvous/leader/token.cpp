#include "rendezvous/leader/token.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "rendezvous/common/base64.h"
#include "rendezvous/common/file_text.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/leader/hmac_sha256.h"

namespace ddprun::rdzv {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{4} * 1024;
constexpr mode_t kOthers = 077;
constexpr std::string_view kWhiteSpace = " \t\r\n\v\f";
constexpr std::string_view kCredentialOf = "ddprun agent";

std::string octal(mode_t mode) {
  char digits[8];
  std::snprintf(digits, sizeof digits, "%03o", mode & 0777);
  return digits;
}

// Kubernetes mounts a secret read-only into the memory of the pod, for which alone it is; its mode is
// 644, or 440 where the pod's user is not root, and cannot be changed there.
bool is_mounted_secret(int file) {
  struct statfs system {};
  return ::fstatfs(file, &system) == 0 && system.f_type == TMPFS_MAGIC &&
         (system.f_flags & ST_RDONLY) != 0;
}

}  // namespace

Result<std::string> read_token(const std::string& path) { return read_secret("token", path); }

Result<std::string> read_secret(const std::string& name, const std::string& path) {
  const std::string what = "the " + name + " file " + path;
  // O_NONBLOCK: a pipe that nobody writes to is refused below, instead of waited for.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return fail(error_from_errno(errno, what));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return fail(error_from_errno(errno, what));
  if (!S_ISREG(status.st_mode)) {
    return fail(ErrorCode::kInvalidArgument,
                what + " is no regular file; give one that holds the " + name);
  }
  if ((status.st_mode & kOthers) != 0 && !is_mounted_secret(file.get())) {
    return fail(ErrorCode::kPermissionDenied, what + " is open to others than its owner (mode " +
                                                  octal(status.st_mode) + "); run chmod 600 " +
                                                  path);
  }
  auto secret = read_from(file.get(), kMaxFileBytes + 1);
  if (!secret) return fail(error_from_errno(errno, what));
  if (secret->size() > kMaxFileBytes) {
    return fail(ErrorCode::kInvalidArgument, what + " holds more than " +
                                                 std::to_string(kMaxFileBytes) + " bytes; a " +
                                                 name + " is a line, as ddpctl token FILE makes");
  }
  secret->erase(secret->find_last_not_of(kWhiteSpace) + 1);
  if (secret->empty()) {
    return fail(ErrorCode::kInvalidArgument,
                what + " is empty; write a line into it, the same on every node");
  }
  return *std::move(secret);
}

Result<void> make_token(const std::string& path) {
  const wire::Nonce secret = random_nonce();
  const std::string line = to_base64({secret.data(), secret.size()}) + "\n";
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) {
    return errno == EEXIST ? fail(ErrorCode::kInvalidArgument,
                                  path + " is there already; give another name, or remove it first")
                           : fail(error_from_errno(errno, path));
  }
  // A file of one line is written whole, or the disk is full.
  const bool is_written =
      ::fchmod(file.get(), 0600) == 0 &&
      ::write(file.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size()) &&
      ::fsync(file.get()) == 0;
  if (is_written) return {};
  const Error error = error_from_errno(errno, path);
  ::unlink(path.c_str());
  return fail(error);
}

wire::Nonce random_nonce() {
  wire::Nonce nonce;
  if (::getentropy(nonce.data(), nonce.size()) != 0)
    throw std::system_error(errno, std::generic_category(), "getentropy");
  return nonce;
}

std::string credential_contents(std::string_view secret, const wire::Nonce& agent,
                                const wire::Nonce& leader) {
  std::string contents(kCredentialOf);
  contents.append(agent.data(), agent.size()).append(leader.data(), leader.size());
  return contents.append(secret);
}

std::optional<std::string> secret_in(std::string_view contents, const wire::Nonce& agent,
                                     const wire::Nonce& leader) {
  const std::string expected = credential_contents({}, agent, leader);
  if (!contents.starts_with(expected) || contents.size() == expected.size()) return std::nullopt;
  return std::string(contents.substr(expected.size()));
}

std::string proof_of(ProofOf side, std::string_view token, const wire::Nonce& agent,
                     const wire::Nonce& leader) {
  std::string input = side == ProofOf::kAgent ? "ddprun agent" : "ddprun leader";
  input.append(agent.data(), agent.size()).append(leader.data(), leader.size());
  return hmac_sha256(token, input);
}

bool are_equal(std::string_view proof, std::string_view expected) {
  if (proof.size() != expected.size()) return false;
  volatile unsigned char difference = 0;  // volatile: the compiler must not end the loop early
  for (std::size_t i = 0; i < proof.size(); ++i) {
    difference = static_cast<unsigned char>(difference | (proof[i] ^ expected[i]));
  }
  return difference == 0;
}

}  // namespace ddprun::rdzv
