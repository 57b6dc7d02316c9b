#include "rendezvous/net/name_lookup.h"

#include <fcntl.h>
#include <netdb.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <mutex>
#include <utility>

#include "rendezvous/common/lifetime.h"
#include "rendezvous/common/thread.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/net/socket_address.h"

namespace ddprun::rdzv {
namespace {

using boost::system::error_code;

// Shared by both sides; the thread may outlive the Lookup.
struct Question {
  std::string host;
  UniqueFd bell;
  std::mutex mutex;
  std::optional<Result<std::vector<std::string>>> answer;
};

Result<std::vector<std::string>> look_up(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &list); code != 0) {
    return fail(ErrorCode::kNotFound, ::gai_strerror(code));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
    const SocketAddress address = socket_address(each->ai_addr);
    if (!address.is_ip()) continue;
    std::string text = numeric_host(address);
    if (std::ranges::find(addresses, text) == addresses.end()) addresses.push_back(std::move(text));
  }
  if (addresses.empty()) return fail(ErrorCode::kNotFound, "it has no IP address");
  return addresses;
}

void answer(Question& question) {
  auto addresses = look_up(question.host);
  if (!addresses) addresses.error().message.insert(0, "its name is not known: ");
  const std::scoped_lock lock(question.mutex);
  question.answer = std::move(addresses);
  ::eventfd_write(question.bell.get(), 1);
}

class Lookup final : public Attempt {
 public:
  Lookup(boost::asio::io_context& io, const std::string& host, Transport::LookedUp done)
      : told_(io) {
    const auto question = std::make_shared<Question>();
    question->host = host;
    question->bell.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    UniqueFd ours(::fcntl(question->bell.get(), F_DUPFD_CLOEXEC, 0));
    error_code ec;
    if (ours) told_.assign(ours.get(), ec);
    if (!ours || ec) {
      const Error error =
          error_from_errno(ours ? ec.value() : errno, "its name cannot be looked up");
      boost::asio::post(io,
                        lifetime_.guard([error, done = std::move(done)] { done(fail(error)); }));
      return;
    }
    static_cast<void>(ours.release());
    auto thread = Thread::start("lookup", [question] { answer(*question); });
    if (thread) {
      thread->detach();
    } else {
      question->answer = Result<std::vector<std::string>>(fail(thread.error()));
      ::eventfd_write(question->bell.get(), 1);
    }
    told_.async_wait(told_.wait_read,
                     lifetime_.guard([this, question, done = std::move(done)](error_code ignored) {
                       told_.close(ignored);
                       std::unique_lock lock(question->mutex);
                       auto result = *std::move(question->answer);
                       lock.unlock();
                       done(std::move(result));
                     }));
  }

 private:
  boost::asio::posix::stream_descriptor told_;
  const Lifetime lifetime_;
};

}  // namespace

std::unique_ptr<Attempt> look_up_name(boost::asio::io_context& io, const std::string& host,
                                      Transport::LookedUp done) {
  return std::make_unique<Lookup>(io, host, std::move(done));
}

Result<std::vector<std::string>> addresses_of(const std::string& host) {
  if (auto known = addresses_without_lookup(host)) return *std::move(known);
  return look_up(host);
}

std::optional<std::vector<std::string>> addresses_without_lookup(const std::string& host) {
  if (host == "localhost") return {{"127.0.0.1"}};
  if (const auto numeric = parse_numeric(host)) return {{numeric_host(*numeric)}};
  return std::nullopt;
}

}  // namespace ddprun::rdzv
