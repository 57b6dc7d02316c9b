#include "agent/notice/notice_watch.h"

#include <utility>
#include <variant>

#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/durations.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using From = NoticeSpec::From;

constexpr std::chrono::milliseconds kInterval = 5s;
constexpr std::chrono::milliseconds kLimit = 1s;
constexpr std::uint16_t kPort = 80;
constexpr std::size_t kReplyBytesMax = std::size_t{64} * 1024;

}  // namespace

NoticeWatch::NoticeWatch(boost::asio::io_context& io, const NoticeSpec& spec,
                         const Environment& environment, Hooks hooks)
    : io_(io),
      spec_(spec),
      environment_(environment),
      hooks_(std::move(hooks)),
      talk_(spec.from),
      next_(io),
      limit_(io) {}

void NoticeWatch::begin(std::atomic<pid_t>* keeper_slot) {
  if (spec_.from == From::kNowhere) return;
  keeper_slot_ = keeper_slot;
  ask();
}

void NoticeWatch::end() {
  next_.cancel();
  limit_.cancel();
  client_.reset();
  if (run_) run_->kill();
}

// A command that the kernel holds in spite of SIGKILL is not joined by others.
void NoticeWatch::ask() {
  next_.arm(kInterval, [this] { ask(); });
  if (run_) return;
  limit_.arm(kLimit, [this] { on_late(); });
  if (spec_.from == From::kCommand) return run();
  send(talk_.begin());
}

void NoticeWatch::on_late() {
  client_.reset();
  if (!run_) return is_unclear("it did not answer within " + duration_text(kLimit));
  run_->kill();
  is_unclear("it did not end within " + duration_text(kLimit) +
             ", and was killed with its children");
}

// ---- a metadata service

void NoticeWatch::send(rdzv::HttpRequest request) {
  if (!client_) {
    client_ = std::make_unique<rdzv::HttpClient>(
        io_, rdzv::HttpOptions{.server = {kMetadataAddress, kPort},
                               .time_limit = 2 * kLimit,  // limit_ comes first
                               .max_reply_bytes = kReplyBytesMax});
  }
  client_->send(std::move(request),
                [this](const Result<rdzv::HttpReply>& reply) { on_reply(reply); });
}

void NoticeWatch::on_reply(const Result<rdzv::HttpReply>& reply) {
  if (!reply) return answered(Unclear{reply.error().message});
  auto next = talk_.on_reply(*reply);
  if (auto* request = std::get_if<rdzv::HttpRequest>(&next)) return send(std::move(*request));
  answered(std::get<Answer>(next));
}

// ---- a command

void NoticeWatch::run() {
  auto run = CommandRun::start(
      io_, {.command = spec_.command, .environment = environment_, .keeper_slot = keeper_slot_},
      [this](const ExitStatus& end, const std::string& output) {
        run_.reset();
        if (limit_.is_armed()) answered(answer_of_command(end, output));
      });
  if (!run) return answered(Unclear{run.error().to_string()});
  run_ = *std::move(run);
}

// ---- what is found out

void NoticeWatch::answered(const Answer& answer) {
  limit_.cancel();
  if (const auto* unclear = std::get_if<Unclear>(&answer)) return is_unclear(unclear->why);
  unclear_in_a_row_ = 0;
  const auto* notice = std::get_if<Notice>(&answer);
  if (notice == nullptr) return;
  end();
  hooks_.notice(*notice);
}

void NoticeWatch::is_unclear(const std::string& why) {
  const std::string text =
      "--preempt-notice=" + printable(spec_.from == From::kCommand ? spec_.command : spec_.name()) +
      ": " + printable(why);
  hooks_.debug(text);
  if (++unclear_in_a_row_ < patience(spec_.from) || std::exchange(has_complained_, true)) return;
  hooks_.warn(text + "; this is no notice, and it is asked again every " +
              duration_text(kInterval));
}

}  // namespace ddprun::agent
