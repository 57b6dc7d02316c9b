#include "agent/query/control_service.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "agent/events/event_lines.h"
#include "agent/query/log_query.h"
#include "agent/text/json_fields.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kStatusBytesMax = std::size_t{4} * 1024 * 1024;
// How much a follower of events may have unread before further lines are only counted for it.
constexpr std::size_t kUnreadEventBytesMax = std::size_t{64} * 1024;

std::string line_of(const boost::json::object& object) {
  return boost::json::serialize(object) + "\n";
}

std::string error_line(std::string_view sentence) {
  return line_of({{"error", json_text(sentence, kJsonTextBytesMax)}});
}

}  // namespace

ControlService::ControlService(boost::asio::io_context& io, std::string key, std::string run_id,
                               Access access)
    : io_(io), key_(std::move(key)), run_id_(std::move(run_id)), access_(std::move(access)) {
  access_.query.answer_with("log", [this](std::string_view question, const JobQuery::Reply& reply) {
    const auto read = log_query_from(question);
    if (!read) return reply("[]");
    access_.logs.answer(*read,
                        [reply](const std::vector<LogPart>& parts) { reply(to_json(parts)); });
  });
}

Result<void> ControlService::open(const Environment& environment) {
  auto socket = ControlSocket::open(
      io_, environment, run_id_,
      [this](const ClientPtr& client, std::string_view line) { on_request(client, line); });
  if (!socket) return fail(std::move(socket.error()));
  socket_ = std::move(*socket);
  return {};
}

void ControlService::on_request(const ClientPtr& client, std::string_view line) {
  const auto question = question_from(line);
  if (!question) {
    return client->send(error_line("a request is a line of JSON with \"ask\""));
  }
  const std::string& what = question->ask;
  if (what == "who") return tell_who(client);
  if (what == "status") {
    if (std::exchange(client->is_awaiting_status, true)) {
      return client->send(error_line("the status was asked for already, and its answer comes"));
    }
    return access_.query.job_status([weak = std::weak_ptr(client)](const JobStatus& status) {
      const auto asker = weak.lock();
      if (!asker) return;
      asker->is_awaiting_status = false;
      asker->send(to_json_within(status, kStatusBytesMax) + "\n");
    });
  }
  if (what == "events") return tell_events(client, question->past, question->follow);
  if (what == "logs") return tell_logs(client, line, question->follow);
  if (what == "stop") {
    const auto stopped = access_.stop();
    return client->send(stopped ? line_of({{"ok", true}}) : error_line(stopped.error().message));
  }
  if (what == "restart") {
    const auto round = access_.restart();
    return client->send(round ? line_of({{"ok", true}, {"round", number(*round)}})
                              : error_line(round.error().message));
  }
  client->send(error_line("this job does not know the request '" + what +
                          "'; use the ddpctl of the same version"));
}

void ControlService::tell_who(const ClientPtr& client) const {
  const NodeStatus node = access_.query.node_status();
  JsonWriter who;
  who("job", run_id_);
  who("key", key_);
  who("pid", node.agent_pid);
  who("host", node.host);
  who("program", access_.query.identity().program);
  who("state", name_of(node.state));
  client->send(line_of(who.object));
}

void ControlService::tell_events(const ClientPtr& client, bool past, bool follow) {
  if (past) {
    for (const std::string& event : access_.query.node_status().events) {
      client->send(event + "\n");
    }
  }
  if (!follow) return client->send("{\"end\":true}\n");
  client->keep(access_.query.on_event([this, weak = std::weak_ptr(client),
                                       lost = std::uint64_t{0}](const std::string& line) mutable {
    const auto follower = weak.lock();
    if (!follower) return;
    if (follower->unread() > kUnreadEventBytesMax) {
      lost += 1;
      return;
    }
    if (lost > 0) {
      const EventHead head{std::chrono::system_clock::now(), std::chrono::steady_clock::now(),
                           run_id_, access_.query.identity().host};
      follower->send(event_line(head, EventsLost{std::exchange(lost, 0)}));
    }
    follower->send(line);
  }));
}

void ControlService::tell_logs(const ClientPtr& client, std::string_view line, bool follows) {
  const auto question = log_query_from(line);
  if (!question) return client->send(error_line(question.error().message));
  std::erase_if(followers_, [](const auto& each) { return each.expired(); });
  const bool reads_already = std::ranges::any_of(followers_, [&](const auto& each) {
    const auto follower = each.lock();
    return follower && follower->is_of(client) && !follower->is_done();
  });
  if (reads_already) {
    return client->send(
        error_line("this connection reads logs already; open another one for others"));
  }
  const NodeStatus node = access_.query.node_status();
  const std::size_t ranks =
      question->ranks.empty() ? static_cast<std::size_t>(node.world_size) : question->ranks.size();
  if (ranks * 2 > LogFollower::kPlacesMax) {
    return client->send(error_line("the job has " + std::to_string(node.world_size) +
                                   " workers; choose some of them, " +
                                   std::to_string(LogFollower::kPlacesMax / 2) + " at most"));
  }
  for (const int rank : question->ranks) {
    if (rank >= 0 && rank < node.world_size) continue;
    return client->send(error_line("there is no rank " + std::to_string(rank) + "; the job has " +
                                   std::to_string(node.world_size) + " workers"));
  }
  const auto follower =
      std::make_shared<LogFollower>(io_, access_.logs, access_.query, client, *question, follows);
  followers_.push_back(follower);
  follower->start();
}

bool ControlService::has_followers() const {
  return std::ranges::any_of(followers_, [](const auto& each) {
    const auto follower = each.lock();
    return follower && !follower->is_done();
  });
}

void ControlService::finish(std::function<void()> done) {
  finished_ = std::make_shared<std::function<void()>>(std::move(done));
  // Held by each of them until it has been told, or is gone: called when the last one lets go of it.
  const std::shared_ptr<const void> all_told(
      nullptr, [&io = io_, finished = std::weak_ptr(finished_)](auto) {
        if (const auto told = finished.lock()) boost::asio::post(io, *told);
      });
  for (const auto& each : followers_) {
    if (const auto follower = each.lock()) follower->finish(all_told);
  }
}

}  // namespace ddprun::agent
