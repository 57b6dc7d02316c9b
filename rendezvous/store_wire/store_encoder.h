// The requests of the store protocol as bytes: the client's half of the wire. Pure; any thread.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

#include "rendezvous/common/bytes.h"
#include "rendezvous/store_wire/store_protocol.h"

namespace ddprun::rdzv::wire {

class RequestEncoder {
 public:
  explicit RequestEncoder(Query query) : bytes_(1, static_cast<char>(query)) {}

  template <std::integral T>
  RequestEncoder& number(T value) {
    append(bytes_, value);
    return *this;
  }
  RequestEncoder& bytes(std::string_view value) {
    append<std::uint64_t>(bytes_, value.size());
    bytes_ += value;
    return *this;
  }
  // A user's key, with the prefix '/' that PyTorch's clients add.
  RequestEncoder& key(std::string_view value) {
    append<std::uint64_t>(bytes_, value.size() + 1);
    bytes_ += '/';
    bytes_ += value;
    return *this;
  }
  template <typename Keys>
  RequestEncoder& keys(const Keys& values) {
    append<std::uint64_t>(bytes_, values.size());
    for (const auto& value : values) key(value);
    return *this;
  }

  const std::string& str() const { return bytes_; }

 private:
  std::string bytes_;
};

// VALIDATE and the first PING, in one piece: PyTorch's libuv server closes the connection when
// VALIDATE's five bytes reach it in two reads.
inline std::string handshake(std::uint32_t nonce) {
  return RequestEncoder(Query::kValidate).number(kValidateMagic).str() +
         RequestEncoder(Query::kPing).number(nonce).str();
}

}  // namespace ddprun::rdzv::wire
