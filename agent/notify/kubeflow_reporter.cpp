#include "agent/notify/kubeflow_reporter.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <utility>

#include "rendezvous/common/file_text.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/http/tls_context.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr auto kTick = 1s;                          // so that the first report is not late
constexpr auto kInterval = 5s;                      // as Trainer requires
constexpr std::chrono::seconds kIntervalMax = 60s;  // while reports fail
constexpr std::chrono::milliseconds kTimeLimit = 5s;
constexpr std::size_t kTokenFileBytesMax = std::size_t{64} * 1024;
constexpr std::size_t kReplyBytesMax = std::size_t{64} * 1024;
constexpr std::size_t kQuotedBytesMax = 200;

// The message of a Kubernetes Status object, which errors usually are.
std::string message_in(const std::string& body) {
  boost::system::error_code ec;
  const boost::json::value root = boost::json::parse(body, ec);
  const auto* const fields = ec ? nullptr : root.if_object();
  const auto* const message = fields == nullptr ? nullptr : fields->if_contains("message");
  if (message == nullptr || !message->is_string()) return "";
  return ": " + as_utf8(std::string_view(message->get_string()), kQuotedBytesMax);
}

// Reads a regular file, up to the longest possible token. O_NONBLOCK: refuse a pipe, do not wait.
Result<std::string> start_of(const std::string& path, const std::string& what) {
  const rdzv::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) return fail(error_from_errno(errno, what));
  if (!S_ISREG(status.st_mode)) {
    return fail(ErrorCode::kInvalidArgument, what + ": it is no regular file");
  }
  auto text = read_from(file.get(), kTokenFileBytesMax);
  if (!text) return fail(error_from_errno(errno, what));
  return *std::move(text);
}

// Read each time: Kubernetes replaces it long before it expires.
Result<std::string> token_of(const TrainerEndpoint& endpoint) {
  if (endpoint.token_file.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                endpoint.token_variable + " names no file with a token");
  }
  const std::string what = "the token's file " + endpoint.token_file;
  const auto text = start_of(endpoint.token_file, what);
  if (!text) return text;
  auto bearer = bearer_token(*text);
  if (!bearer) return fail(ErrorCode::kInvalidArgument, what + ": " + bearer.error().message);
  return bearer;
}

}  // namespace

struct KubeflowReporter::Access {
  // `needs_client`: there is no connection.
  static Result<Access> read(const TrainerEndpoint& endpoint, bool needs_client) {
    Access read;
    auto token = token_of(endpoint);
    if (!token) return fail(std::move(token.error()));
    read.token = *std::move(token);
    auto url = rdzv::parse_http_url(endpoint.url);
    if (!url) return fail(std::move(url.error()));
    if (!url->is_tls) {
      return fail(ErrorCode::kInvalidArgument, "a token is sent over https only");
    }
    read.url = *std::move(url);
    if (!needs_client) return read;
    auto tls = rdzv::make_tls_context({.ca = endpoint.ca_file});
    if (!tls) return fail(std::move(tls.error()));
    read.tls = *std::move(tls);
    return read;
  }

  std::string token;
  rdzv::HttpUrl url;
  std::shared_ptr<rdzv::TlsContext> tls;
};

KubeflowReporter::KubeflowReporter(boost::asio::io_context& io, const Environment& environment,
                                   std::function<std::optional<JobProgress>()> progress,
                                   std::function<void(std::string_view)> warn)
    : io_(io),
      endpoint_(trainer_endpoint(environment)),
      progress_(std::move(progress)),
      warn_(std::move(warn)),
      tick_(io),
      files_(io.get_executor(), "ddprun-kubeflow") {}

void KubeflowReporter::round_began() {
  latest_.reset();  // rank 0 may be on another node now
  if (endpoint_ && !std::exchange(has_begun_, true)) await_tick();
}

void KubeflowReporter::await_tick() {
  tick_.arm(kTick, [this] {
    if (!endpoint_) return;
    look();
    if (has_news() && Clock::now() >= next_) push();
    await_tick();
  });
}

void KubeflowReporter::look() {
  if (!endpoint_) return;
  const auto progress = progress_();
  if (!progress) return;
  latest_ = progress;
  latest_remaining_ = remaining_.estimate(*progress, Clock::now());
}

void KubeflowReporter::send_last(std::function<void()> done) {
  tick_.cancel();
  when_sent_ = std::move(done);
  send_last();
}

void KubeflowReporter::send_last() {
  if (has_news() && failures_ == 0) push();
  if (!is_busy_ && when_sent_) std::exchange(when_sent_, nullptr)();
}

void KubeflowReporter::push() {
  is_busy_ = true;
  sent_ = latest_;
  next_ = Clock::now() + kInterval;
  files_.run<Result<Access>>(
      kTimeLimit,
      [endpoint = *endpoint_, needs_client = !client_] {
        return Access::read(endpoint, needs_client);
      },
      [this](std::optional<Result<Access>> access) {
        if (!access) {
          return on_reply(
              fail(ErrorCode::kTimeout, "the file system of its token does not answer"));
        }
        if (!*access) return on_reply(fail(std::move(access->error())));
        send(std::move(**access));
      });
}

void KubeflowReporter::send(Access access) {
  if (!client_) {
    client_ = std::make_unique<rdzv::HttpClient>(
        io_, rdzv::HttpOptions{.server = access.url.server,
                               .tls = std::move(access.tls),
                               .time_limit = kTimeLimit,
                               .max_reply_bytes = kReplyBytesMax});
  }
  client_->send(
      {.target = access.url.target,
       .body = kubeflow_status(*sent_, latest_remaining_, std::chrono::system_clock::now()),
       .headers = {{"Authorization", "Bearer " + access.token}}},
      [this](const Result<rdzv::HttpReply>& reply) { on_reply(reply); });
}

void KubeflowReporter::on_reply(const Result<rdzv::HttpReply>& reply) {
  is_busy_ = false;
  if (reply && reply->status / 100 == 2) {
    failures_ = 0;
  } else {
    on_failure(reply ? "it answers " + std::to_string(reply->status) + message_in(reply->body)
                     : reply.error().to_string());
  }
  if (when_sent_) send_last();
}

void KubeflowReporter::on_failure(const std::string& why) {
  sent_.reset();
  client_.reset();
  const auto pause =
      std::min<std::chrono::seconds>(kIntervalMax, kInterval * (1 << std::min(failures_, 4)));
  ++failures_;
  next_ = Clock::now() + pause;
  if (std::exchange(has_complained_, true)) return;
  warn_(endpoint_->url_variable + "=" + endpoint_->url + ": " + why +
        "; Kubeflow Trainer gets no progress reports for now, the job continues");
}

}  // namespace ddprun::agent
