#include "rendezvous/leader/token.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "rendezvous/common/file_text.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/leader/hmac_sha256.h"

namespace ddprun::rdzv {
namespace {

constexpr std::size_t kMaxFileBytes = 4 * 1024;
constexpr mode_t kOthers = 077;
constexpr std::string_view kWhiteSpace = " \t\r\n\v\f";

std::string octal(mode_t mode) {
  char digits[8];
  std::snprintf(digits, sizeof digits, "%03o", mode & 0777);
  return digits;
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
  if ((status.st_mode & kOthers) != 0) {
    return fail(ErrorCode::kPermissionDenied, what + " is open to others than its owner (mode " +
                                                  octal(status.st_mode) + "); run chmod 600 " +
                                                  path);
  }
  auto secret = read_from(file.get(), kMaxFileBytes + 1);
  if (!secret) return fail(error_from_errno(errno, what));
  if (secret->size() > kMaxFileBytes) {
    return fail(ErrorCode::kInvalidArgument,
                what + " holds more than " + std::to_string(kMaxFileBytes) + " bytes; a " + name +
                    " is a line, as head -c 32 /dev/urandom | base64 makes");
  }
  secret->erase(secret->find_last_not_of(kWhiteSpace) + 1);
  if (secret->empty()) {
    return fail(ErrorCode::kInvalidArgument,
                what + " is empty; write a line into it, the same on every node");
  }
  return *std::move(secret);
}

wire::Nonce random_nonce() {
  wire::Nonce nonce;
  if (::getentropy(nonce.data(), nonce.size()) != 0)
    throw std::system_error(errno, std::generic_category(), "getentropy");
  return nonce;
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
