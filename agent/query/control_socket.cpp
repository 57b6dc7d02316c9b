#include "agent/query/control_socket.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <utility>

#include "rendezvous/net/connection.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kRequestBytesMax = std::size_t{8} * 1024;
constexpr std::size_t kClientsMax = 32;
constexpr std::chrono::seconds kPause{1};

bool is_ours(int socket) {
  const auto peer = peer_of(socket);
  return peer && (peer->uid == ::geteuid() || peer->uid == 0);
}

}  // namespace

Result<std::unique_ptr<ControlSocket>> ControlSocket::open(boost::asio::io_context& io,
                                                           const Environment& environment,
                                                           std::string_view run_id,
                                                           OnRequest on_request) {
  std::optional<Error> why;
  for (const std::string& path : control_folders(environment, ::geteuid())) {
    auto folder = open_control_folder(path, ::geteuid(), /*makes_it=*/true);
    // If a folder does not exist, try the next one; report any other error.
    if (!folder) {
      const bool is_wrong = folder.error().code == ErrorCode::kPermissionDenied;
      why = std::move(folder.error());
      if (is_wrong) break;
      continue;
    }
    auto bound = bind_control(*folder, run_id, ::getpid(), ::geteuid());
    if (!bound) return fail(std::move(bound.error()).with("folder", path));
    const std::string whole = path + "/" + bound->name;
    return std::unique_ptr<ControlSocket>(
        new ControlSocket(io, std::move(*folder), std::move(*bound), whole, std::move(on_request)));
  }
  return fail(std::move(*why));
}

ControlSocket::ControlSocket(boost::asio::io_context& io, rdzv::UniqueFd folder, BoundControl bound,
                             std::string path, OnRequest on_request)
    : io_(io),
      folder_(std::move(folder)),
      name_(std::move(bound.name)),
      path_(std::move(path)),
      on_request_(std::move(on_request)),
      listener_(io, bound.socket.release()),
      pause_(io) {
  accept();
}

ControlSocket::~ControlSocket() {
  ::unlinkat(folder_.get(), name_.c_str(), 0);
  for (const ClientPtr& client : clients_) {
    client->kept_.reset();
    client->connection_->close();
  }
}

void ControlSocket::accept() {
  listener_.async_wait(
      listener_.wait_read, lifetime_.guard([this](const boost::system::error_code& ec) {
        if (ec) return;
        rdzv::UniqueFd socket(
            ::accept4(listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        // Without a free descriptor the socket would be ready again at once.
        if (!socket && (errno == EMFILE || errno == ENFILE)) {
          return pause_.arm(kPause, [this] { accept(); });
        }
        if (socket) admit(std::move(socket));
        accept();
      }));
}

void ControlSocket::admit(rdzv::UniqueFd socket) {
  if (!is_ours(socket.get())) return;
  const auto client =
      std::make_shared<ControlClient>(rdzv::stream_over(io_.get_executor(), std::move(socket)));
  if (clients_.size() >= kClientsMax) {
    client->send("{\"error\":\"too many clients are connected to this job\"}\n");
    return client->connection_->close();
  }
  clients_.insert(client);
  const std::weak_ptr<ControlClient> weak = client;
  client->connection_->start({.on_bytes = lifetime_.guard([this, weak](std::string_view bytes) {
                                if (const auto each = weak.lock()) read(each, bytes);
                              }),
                              .on_end = lifetime_.guard([this, weak](const Error&) {
                                if (const auto each = weak.lock()) drop(each);
                              })});
}

void ControlSocket::read(const ClientPtr& client, std::string_view bytes) {
  client->received_ += bytes;
  for (;;) {
    const std::size_t end = client->received_.find('\n');
    if (end == std::string::npos) break;
    const std::string line = client->received_.substr(0, end);
    client->received_.erase(0, end + 1);
    on_request_(client, line);
    if (!client->is_open()) return;
  }
  if (client->received_.size() <= kRequestBytesMax) return;
  client->send("{\"error\":\"a request is a line of at most 8 KiB\"}\n");
  drop(client);
}

void ControlSocket::drop(const ClientPtr& client) {
  client->kept_.reset();
  client->connection_->close();
  clients_.erase(client);
}

}  // namespace ddprun::agent
