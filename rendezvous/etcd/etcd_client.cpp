#include "rendezvous/etcd/etcd_client.h"

namespace ddprun::rdzv {
namespace {

constexpr unsigned kOk = 200;

// The gRPC status codes that are used here.
constexpr int kInvalidArgument = 3;
constexpr int kNotFound = 5;
constexpr int kPermissionDenied = 7;
constexpr int kResourceExhausted = 8;
constexpr int kFailedPrecondition = 9;
constexpr int kUnauthenticated = 16;

bool is_about_the_token(const wire::EtcdRefusal& refusal) {
  return refusal.code == kUnauthenticated ||
         refusal.message.find("invalid auth token") != std::string::npos ||
         refusal.message.find("revision of auth store is old") != std::string::npos;
}

}  // namespace

bool is_final(const Error& error) {
  return error.code == ErrorCode::kPermissionDenied || error.code == ErrorCode::kProtocol ||
         error.code == ErrorCode::kInvalidArgument || error.code == ErrorCode::kDataLoss;
}

// ---- questions

HttpRequest EtcdClient::request_of(const std::string& target, std::string body) const {
  HttpRequest request{.target = target, .body = std::move(body)};
  if (!token_.empty()) request.headers.emplace_back("Authorization", token_);
  return request;
}

void EtcdClient::ask(std::string target, std::string body, Answer answer) {
  send({std::move(target), std::move(body), std::move(answer), spec_.endpoints.size()});
}

void EtcdClient::send(Question question) {
  if (!spec_.user.empty() && token_.empty() && question.may_log_in) {
    return log_in(std::move(question));
  }
  HttpRequest request = request_of(question.target, question.body);
  http_->send(endpoint_, std::move(request),
              [this, endpoint = endpoint_, question = std::move(question)](
                  Result<HttpReply> reply) { take(question, endpoint, std::move(reply)); });
}

void EtcdClient::take(Question question, std::size_t endpoint, Result<HttpReply> reply) {
  if (!reply) {
    reply.error().message.insert(0, "etcd: ");
    return ask_next(std::move(question), endpoint, reply.error());
  }
  local_address_ = reply->local_address;
  if (reply->status == kOk) return question.answer(std::move(reply->body));
  const wire::EtcdRefusal refusal = wire::read_etcd_refusal(reply->body);
  if (!spec_.user.empty() && question.may_log_in && is_about_the_token(refusal)) {
    token_.clear();
    return log_in(std::move(question));
  }
  const Error error = error_of(refusal, endpoint);
  if (error.code == ErrorCode::kUnavailable) return ask_next(std::move(question), endpoint, error);
  question.answer(fail(error));
}

// Other requests may have switched to the next endpoint already.
void EtcdClient::ask_next(Question question, std::size_t endpoint, const Error& error) {
  if (endpoint == endpoint_) endpoint_ = (endpoint + 1) % spec_.endpoints.size();
  question.endpoints_left -= 1;
  if (question.endpoints_left > 0) return send(std::move(question));
  question.answer(fail(error));
}

Error EtcdClient::error_of(const wire::EtcdRefusal& refusal, std::size_t endpoint) const {
  const std::string where = spec_.endpoints[endpoint].to_string();
  const std::string who = "etcd at " + where;
  const auto says = [&](std::string_view what) {
    return refusal.message.find(what) != std::string::npos;
  };
  switch (refusal.code) {
    case -1:
      return {ErrorCode::kProtocol,
              "what answers at " + where +
                  " is no etcd with a v3 gateway (it says: " + refusal.message + ")"};
    case kInvalidArgument:
    case kFailedPrecondition: {
      const bool is_login = says("authentication failed") || says("user name is empty");
      return {is_login ? ErrorCode::kPermissionDenied : ErrorCode::kInvalidArgument,
              who + " refuses: " + refusal.message};
    }
    case kNotFound:
      return {ErrorCode::kNotFound, who + ": " + refusal.message};
    case kPermissionDenied:
    case kUnauthenticated:
      return {ErrorCode::kPermissionDenied, who + " refuses: " + refusal.message};
    case kResourceExhausted:
      return {ErrorCode::kResourceExhausted,
              who + " accepts no more writes: " + refusal.message +
                  "; compact and defragment it, then `etcdctl alarm disarm`"};
    default:
      return {ErrorCode::kUnavailable, who + ": " + refusal.message};
  }
}

void EtcdClient::log_in(Question after) {
  after.may_log_in = false;
  Question login{"/v3/auth/authenticate",
                 wire::etcd_authenticate(spec_.user, spec_.password),
                 {},
                 spec_.endpoints.size(),
                 false};
  login.answer = [this, after = std::move(after)](const Result<std::string>& body) {
    auto token = body.and_then(wire::read_etcd_token);
    if (!token) return after.answer(fail(std::move(token.error())));
    token_ = *std::move(token);
    send(after);
  };
  send(std::move(login));
}

void EtcdClient::txn(wire::EtcdTxn txn, Done<wire::EtcdTxnAnswer> done) {
  std::string body = wire::etcd_txn(txn);
  ask("/v3/kv/txn", std::move(body),
      [txn = std::move(txn), done = std::move(done)](const Result<std::string>& answer) {
        done(answer.and_then(
            [&](const std::string& text) { return wire::read_etcd_txn(text, txn); }));
      });
}

void EtcdClient::ask_lease(std::string target, std::string body, Done<wire::EtcdLease> done) {
  ask(std::move(target), std::move(body),
      [done = std::move(done)](const Result<std::string>& answer) {
        done(answer.and_then(wire::read_etcd_lease));
      });
}

void EtcdClient::grant(std::chrono::seconds time, Done<wire::EtcdLease> done) {
  ask_lease("/v3/lease/grant", wire::etcd_grant(time.count()), std::move(done));
}

void EtcdClient::keep_alive(std::int64_t lease, Done<wire::EtcdLease> done) {
  ask_lease("/v3/lease/keepalive", wire::etcd_lease(lease), std::move(done));
}

void EtcdClient::revoke(std::int64_t lease, std::function<void()> done) {
  ask("/v3/lease/revoke", wire::etcd_lease(lease),
      [done = std::move(done)](const auto&) { done(); });
}

// ---- the watch

void EtcdClient::watch(const std::string& key, std::int64_t from_revision, WatchEvents events) {
  stream_.reset();
  watches_ += 1;
  watch_events_ = std::move(events);
  refused_ = false;
  stream_ =
      http_->open_stream(endpoint_, request_of("/v3/watch", wire::etcd_watch(key, from_revision)),
                         {.on_open = [this](unsigned status) { refused_ = status != kOk; },
                          .on_line = [this](std::string_view line) { take_watched(line); },
                          .on_end = [this](Error error) { end_watch(std::move(error)); }});
}

void EtcdClient::take_watched(std::string_view line) {
  if (refused_) {
    const wire::EtcdRefusal refusal = wire::read_etcd_refusal(line);
    if (is_about_the_token(refusal)) token_.clear();  // the next request logs in
    return end_watch(error_of(refusal, endpoint_));
  }
  auto answer = wire::read_etcd_watch(line);
  if (answer && answer->is_canceled) {
    answer = fail(ErrorCode::kUnavailable, "etcd has ended the watch");
  }
  if (!answer) return end_watch(std::move(answer.error()));
  const std::uint64_t watch = watches_;
  for (wire::EtcdEvent& event : answer->events) {
    watch_events_.on_event(std::move(event));
    if (watches_ != watch || !stream_) return;
  }
}

void EtcdClient::end_watch(Error error) {
  if (!stream_) return;
  stream_.reset();
  const auto on_end = watch_events_.on_end;
  on_end(std::move(error));
}

}  // namespace ddprun::rdzv
