#include "agent/query/log_follower.h"

#include <chrono>

namespace ddprun::agent {
namespace {

constexpr std::chrono::milliseconds kInterval{200};
constexpr std::size_t kUnreadBytesMax = std::size_t{256} * 1024;
constexpr std::chrono::milliseconds kOwnPatience{
    500};  // how long to wait for the own disk; then the answer goes without it

}  // namespace

LogFollower::LogFollower(boost::asio::io_context& io, LogReader& logs, JobQuery& query,
                         ControlSocket::ClientPtr client, LogQuery question, bool follows)
    : logs_(logs),
      query_(query),
      client_(client),
      question_(std::move(question)),
      follows_(follows),
      timer_(io) {}

void LogFollower::finish(std::shared_ptr<const void> until_told) {
  follows_ = false;
  if (is_done()) return;
  until_told_ = std::move(until_told);
  if (!is_asking_) ask();
}

void LogFollower::ask() {
  is_asking_ = true;
  LogQuery question = question_;
  question.is_final = !follows_;
  asked_as_follower_ = follows_;
  for (const auto& [whose, place] : places_) question.places.push_back(place);
  awaited_ = 2;
  const auto self = shared_from_this();
  auto has_own = std::make_shared<bool>(false);
  logs_.answer(question, [self, has_own](const std::vector<LogPart>& parts) {
    if (std::exchange(*has_own, true)) return;
    self->take(parts);
    self->asked();
  });
  timer_.arm(kOwnPatience, [self, has_own] {
    if (!std::exchange(*has_own, true)) self->asked();
  });
  query_.ask(std::nullopt, to_json(question), [self](const JobQuery::Outcome& outcome) {
    for (const auto& [id, text] : outcome.answers) {
      if (const auto parts = log_parts_from(text)) self->take(*parts);
    }
    self->asked();
  });
}

void LogFollower::take(const std::vector<LogPart>& parts) {
  const auto client = client_.lock();
  if (!client) return;
  for (const LogPart& part : parts) {
    const std::pair whose{part.next.rank, part.next.stream};
    const bool is_mute = part.source == LogPart::Source::kElsewhere || !part.trouble.empty();
    if (places_.size() < kPlacesMax || places_.contains(whose)) places_[whose] = part.next;
    if (is_mute && (told_of_.size() == kPlacesMax || !told_of_.insert(whose).second)) continue;
    if (part.text.empty() && part.missed == 0 && !is_mute) continue;
    client->send(to_json({part}) + "\n");
  }
}

void LogFollower::asked() {
  if (--awaited_ > 0) return;
  timer_.cancel();
  is_asking_ = false;
  const bool was_last = !asked_as_follower_;
  if (was_last) until_told_.reset();
  const auto client = client_.lock();
  if (!client || !client->is_open()) return;
  if (was_last) {
    is_done_ = true;
    client->send("{\"end\":true}\n");
    return;
  }
  if (!follows_) return ask();  // the job has ended in between
  ask_later();
}

// Waits while the client does not read; nothing is lost, because the logs keep it.
void LogFollower::ask_later() {
  timer_.arm(kInterval, [self = shared_from_this()] {
    const auto client = self->client_.lock();
    if (!client || !client->is_open()) return;
    if (client->unread() > kUnreadBytesMax) return self->ask_later();
    self->ask();
  });
}

}  // namespace ddprun::agent
