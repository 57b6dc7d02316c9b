#include "agent/query/control_service.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "agent/events/event_lines.h"
#include "agent/query/control_folder.h"
#include "agent/query/drain_query.h"
#include "agent/query/log_query.h"
#include "agent/text/json_fields.h"
#include "rendezvous/net/connection.h"
#include "rendezvous/net/transport.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kRequestBytesMax = std::size_t{8} * 1024;
constexpr std::size_t kClientsMax = 32;
constexpr std::chrono::seconds kPause{1};
constexpr std::size_t kStatusBytesMax = std::size_t{4} * 1024 * 1024;
// How much a follower of events may have unread before further lines are only counted for it.
constexpr std::size_t kUnreadEventBytesMax = std::size_t{64} * 1024;
// The same for a follower of logs, before it waits.
constexpr std::size_t kUnreadLogBytesMax = std::size_t{256} * 1024;
constexpr std::chrono::milliseconds kLogInterval{
    200};  // for one follower; for more, so many times as long
// How long to wait for the own disk; then the answer goes without it.
constexpr std::chrono::milliseconds kOwnPatience{500};
constexpr std::size_t kPlacesMax = 64;  // as many as fit into a question for logs
constexpr const char* kEnd = "{\"end\":true}\n";

std::string line_of(const boost::json::object& object) {
  return boost::json::serialize(object) + "\n";
}

bool is_ours(const std::optional<ucred>& peer) {
  return peer && (peer->uid == ::geteuid() || peer->uid == 0);
}

// This node's workers have reported it; -1: they have reported none.
std::int64_t latest_step(const NodeStatus& node) {
  std::int64_t latest = -1;
  for (const WorkerStatus& worker : node.workers) {
    if (worker.progress) latest = std::max(latest, worker.progress->step.value_or(-1));
  }
  return latest;
}

}  // namespace

// Keep it to answer later; sending to a client that is gone does nothing.
class ControlService::Client {
 public:
  Client(rdzv::StreamPtr stream, const ucred& by) : peer(by), connection(std::move(stream)) {}

  // `line` includes its end. A client that reads too slowly is dropped.
  void send(std::string_view line) { connection->send(line); }
  void refuse(std::string_view sentence) {
    send(line_of({{"error", json_text(sentence, kJsonTextBytesMax)}}));
  }
  bool is_open() const { return connection->is_open(); }
  // Bytes that were sent and are not read yet, without those in the kernel's buffer.
  std::size_t unread() const { return connection->unsent(); }
  void close() {
    subscription.reset();
    connection->close();
  }

  const ucred peer;
  rdzv::StreamPtr connection;
  std::string received;
  std::shared_ptr<void> subscription;  // to events
  std::set<std::string> awaited;       // a client may wait for one answer of each kind at a time
};

// A question for stacks that all nodes are about to answer, for all clients that ask the same meanwhile.
class ControlService::StackAnswer {
 public:
  StackAnswer() = default;
  StackAnswer(const StackAnswer&) = delete;
  StackAnswer& operator=(const StackAnswer&) = delete;
  // Every node has answered, or had its time.
  ~StackAnswer() { tell_all(kEnd, /*is_end=*/true); }

  void add(const ClientPtr& client) {
    for (const std::string& line : lines_) client->send(line);
    askers_.push_back(client);
  }
  void tell(const std::vector<WorkerStacks>& stacks) {
    if (!stacks.empty()) tell_all(lines_.emplace_back(to_json(stacks) + "\n"), /*is_end=*/false);
  }

 private:
  void tell_all(std::string_view line, bool is_end) const {
    for (const auto& each : askers_) {
      const auto asker = each.lock();
      if (!asker) continue;
      if (is_end) asker->awaited.erase("stacks");
      asker->send(line);
    }
  }

  std::vector<std::weak_ptr<Client>> askers_;
  std::vector<std::string> lines_;
};

// A client that reads workers' logs of the whole job: asks this node and the others, sends their
// answers to the client, and, while the client follows, asks again five times a second, but not
// before all have answered and the client has read everything. Several followers ask five times a second together, so
// that other nodes have no more to do for them than for one. Keeps itself alive by its pending callbacks; ends with its
// client.
class ControlService::LogFollower : public std::enable_shared_from_this<LogFollower> {
 public:
  LogFollower(ControlService& service, const ClientPtr& client, LogQuery question, bool follows)
      : service_(service),
        client_(client),
        question_(std::move(question)),
        follows_(follows),
        timer_(service.io_) {}

  void ask();
  // The job has ended: tells what has come since, and then that it is the end. `until_told` is held
  // until then, or until the client is gone.
  void finish(std::shared_ptr<const void> until_told);
  bool is_of(const ClientPtr& client) const { return client_.lock() == client; }
  bool is_done() const { return is_done_ || client_.expired(); }

 private:
  void take(const std::vector<LogPart>& parts);
  void asked();  // this node or the others have answered
  void ask_later();

  ControlService& service_;
  const std::weak_ptr<Client> client_;
  const LogQuery question_;
  bool follows_;
  bool is_done_ = false;
  bool is_asking_ = false;
  bool asked_as_follower_ = false;  // at the last question
  Timer timer_;
  std::map<std::pair<int, Stream>, LogPlace> places_;
  std::set<std::pair<int, Stream>> told_of_;  // reported as unreadable
  int awaited_ = 0;
  std::shared_ptr<const void> until_told_;
};

ControlService::ControlService(boost::asio::io_context& io, std::string key, std::string run_id,
                               JobQuery& query, LogReader& logs, Requests requests)
    : io_(io),
      key_(std::move(key)),
      run_id_(std::move(run_id)),
      query_(query),
      logs_(logs),
      requests_(std::move(requests)),
      listener_(io),
      pause_(io) {
  query_.answer_with("log", [this](std::string_view question, const JobQuery::Reply& reply) {
    const auto read = log_query_from(question);
    if (!read) return reply("[]");
    logs_.answer(*read, [reply](const std::vector<LogPart>& parts) { reply(to_json(parts)); });
  });
  query_.answer_with("replace", [this](std::string_view text, const JobQuery::Reply& reply) {
    const auto question = question_from(text);
    reply(question ? answer_to_replace(question->rank, question->by) : "");
  });
  query_.answer_with("stacks", [this](std::string_view question, const JobQuery::Reply& reply) {
    const auto read = stack_query_from(question);
    if (!read) return reply("[]");
    requests_.stacks(*read,
                     [reply](const std::vector<WorkerStacks>& stacks) { reply(to_json(stacks)); });
  });
}

ControlService::~ControlService() {
  for (const ClientPtr& client : clients_) client->close();
  if (folder_) remove_control(std::move(folder_), name_);
}

// ---- clients

Result<void> ControlService::open(const Environment& environment) {
  user_ = value_or_empty(environment, "USER");
  auto own = own_control_folder(environment, ::geteuid());
  if (!own) return fail(std::move(own.error()));
  auto bound = bind_control(own->folder, run_id_, ::getpid(), ::geteuid());
  if (!bound) return fail(std::move(bound.error()).with("folder", own->path));
  folder_ = std::move(own->folder);
  name_ = std::move(bound->name);
  path_ = own->path + "/" + name_;
  listener_.assign(bound->socket.release());
  accept();
  return {};
}

void ControlService::accept() {
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

void ControlService::admit(rdzv::UniqueFd socket) {
  const auto peer = peer_of(socket.get());
  if (!is_ours(peer)) return;
  const auto client =
      std::make_shared<Client>(rdzv::stream_over(io_.get_executor(), std::move(socket)), *peer);
  if (clients_.size() >= kClientsMax) {
    client->refuse("too many clients are connected to this job");
    return client->close();
  }
  clients_.insert(client);
  const std::weak_ptr<Client> weak = client;
  client->connection->start({.on_bytes = lifetime_.guard([this, weak](std::string_view bytes) {
                               if (const auto each = weak.lock()) read(each, bytes);
                             }),
                             .on_end = lifetime_.guard([this, weak](const Error&) {
                               if (const auto each = weak.lock()) drop(each);
                             })});
}

void ControlService::read(const ClientPtr& client, std::string_view bytes) {
  client->received += bytes;
  for (;;) {
    const std::size_t end = client->received.find('\n');
    if (end == std::string::npos) break;
    const std::string line = client->received.substr(0, end);
    client->received.erase(0, end + 1);
    on_request(client, line);
    if (!client->is_open()) return;
  }
  if (client->received.size() <= kRequestBytesMax) return;
  client->refuse("a request is a line of at most 8 KiB");
  drop(client);
}

void ControlService::drop(const ClientPtr& client) {
  client->close();
  clients_.erase(client);
}

// ---- requests

void ControlService::on_request(const ClientPtr& client, std::string_view line) {
  const auto question = question_from(line);
  if (!question) {
    return client->refuse("a request is a line of JSON with \"ask\"");
  }
  const std::string& what = question->ask;
  if (what == "who") return tell_who(client);
  if (what == "status") {
    if (!may_await(*client, what)) return;
    return query_.job_status([weak = std::weak_ptr(client)](const JobStatus& status) {
      const auto asker = weak.lock();
      if (!asker) return;
      asker->awaited.erase("status");
      asker->send(to_json_within(status, kStatusBytesMax) + "\n");
    });
  }
  if (what == "events") return tell_events(client, question->past, question->follow);
  if (what == "logs") return tell_logs(client, line, question->follow);
  if (what == "stacks") return tell_stacks(client, line);
  if (what == "replace") return replace(client, question->rank);
  if (what == "drain" || what == "undrain") return drain(client, *question);
  if (what == "stop") {
    const auto stopped = requests_.stop(in_words(what, *client));
    return stopped ? client->send(line_of({{"ok", true}}))
                   : client->refuse(stopped.error().message);
  }
  if (what == "restart") {
    const std::int64_t step = latest_step(query_.node_status());
    const auto round = requests_.restart(in_words(what, *client));
    if (!round) return client->refuse(round.error().message);
    return client->send(line_of({{"ok", true}, {"round", number(*round)}, {"step", step}}));
  }
  client->refuse("this job does not know the request '" + what +
                 "'; use the ddpctl of the same version");
}

bool ControlService::may_await(Client& client, const std::string& what) {
  if (client.awaited.insert(what).second) return true;
  client.refuse("this connection has asked for '" + what + "' already, and the answer comes");
  return false;
}

// "ddpctl stop (root, pid 4711)". Names of users are not looked up: that may ask a server and wait.
std::string ControlService::in_words(std::string_view request, const Client& client) const {
  const auto& [pid, uid, gid] = client.peer;
  std::string who = uid == 0                               ? "root"
                    : uid == ::geteuid() && !user_.empty() ? user_
                                                           : "user " + std::to_string(uid);
  if (pid != 0) who += ", pid " + std::to_string(pid);  // 0: of another pid namespace
  const NodeStatus node = query_.node_status();
  if (node.node_count > 1) who += " on " + node.host;
  return "ddpctl " + std::string(request) + " (" + who + ")";
}

void ControlService::tell_who(const ClientPtr& client) const {
  const NodeStatus node = query_.node_status();
  JsonWriter who;
  who("job", run_id_);
  who("key", key_);
  who("pid", node.agent_pid);
  who("host", node.host);
  who("program", query_.identity().program);
  who("state", name_of(node.state));
  std::error_code ec;
  const auto folder = std::filesystem::current_path(ec);  // a link of a folder that is gone: none
  who("folder", ec ? "" : folder.string());
  who("began_unix_us", std::chrono::system_clock::now() - node.wall);
  client->send(line_of(who.object));
}

void ControlService::tell_events(const ClientPtr& client, bool past, bool follow) {
  if (past) {
    for (const std::string& event : query_.node_status().events) {
      client->send(event + "\n");
    }
  }
  if (!follow) return client->send(kEnd);
  client->subscription =
      query_.on_event([this, weak = std::weak_ptr(client),
                       lost = std::uint64_t{0}](const std::string& line) mutable {
        const auto follower = weak.lock();
        if (!follower) return;
        if (follower->unread() > kUnreadEventBytesMax) {
          lost += 1;
          return;
        }
        if (lost > 0) {
          const EventHead head{std::chrono::system_clock::now(), std::chrono::steady_clock::now(),
                               run_id_, query_.identity().host};
          follower->send(event_line(head, EventsLost{std::exchange(lost, 0)}));
        }
        follower->send(line);
      });
}

void ControlService::tell_logs(const ClientPtr& client, std::string_view line, bool follows) {
  const auto question = log_query_from(line);
  if (!question) return client->refuse(question.error().message);
  std::erase_if(followers_, [](const auto& each) { return each.expired(); });
  const bool reads_already = std::ranges::any_of(followers_, [&](const auto& each) {
    const auto follower = each.lock();
    return follower && follower->is_of(client) && !follower->is_done();
  });
  if (reads_already) {
    return client->refuse("this connection reads logs already; open another one for others");
  }
  const NodeStatus node = query_.node_status();
  const std::size_t ranks =
      question->ranks.empty() ? static_cast<std::size_t>(node.world_size) : question->ranks.size();
  if (ranks * 2 > kPlacesMax) {
    return client->refuse("the job has " + std::to_string(node.world_size) +
                          " workers; choose some of them, " + std::to_string(kPlacesMax / 2) +
                          " at most");
  }
  if (refuses_ranks(*client, question->ranks)) return;
  const auto follower = std::make_shared<LogFollower>(*this, client, *question, follows);
  followers_.push_back(follower);
  follower->ask();
}

bool ControlService::refuses_ranks(Client& client, const std::vector<int>& ranks) const {
  const int world_size = query_.node_status().world_size;
  for (const int rank : ranks) {
    if (rank >= 0 && rank < world_size) continue;
    client.refuse("there is no rank " + std::to_string(rank) + "; the job has " +
                  std::to_string(world_size) + " workers");
    return true;
  }
  return false;
}

// A line for each node as its answer comes, this one's first of all; then the nodes without one.
void ControlService::tell_stacks(const ClientPtr& client, std::string_view line) {
  const auto question = stack_query_from(line);
  if (!question) return client->refuse(question.error().message);
  if (refuses_ranks(*client, question->ranks)) return;
  if (!may_await(*client, "stacks")) return;
  const std::string text = to_json(*question);
  if (const auto answer = stacks_[text].lock()) return answer->add(client);
  std::erase_if(stacks_, [](const auto& each) { return each.second.expired(); });
  const auto answer = std::make_shared<StackAnswer>();  // held by everything that will add to it
  stacks_[text] = answer;
  answer->add(client);
  requests_.stacks(*question,
                   [answer](const std::vector<WorkerStacks>& stacks) { answer->tell(stacks); });
  const auto tell = [answer](const JobQuery::Outcome& outcome) {
    for (const auto& [id, of_node] : outcome.answers) {
      if (const auto stacks = worker_stacks_from(of_node)) answer->tell(*stacks);
    }
    if (!outcome.asked) return;
    std::vector<WorkerStacks> late;
    for (const auto& member : outcome.asked->view.members) {
      if (member.id == outcome.asked->you || outcome.answers.contains(member.id)) continue;
      late.emplace_back().host = member.host;
      late.back().trouble = "it does not answer";
    }
    answer->tell(late);
  };
  query_.ask(std::nullopt, text, tell, kStackLimit + std::chrono::seconds(1));
}

// Empty: the rank is of another node.
std::string ControlService::answer_to_replace(int rank, const std::string& by) const {
  const auto done = requests_.replace(rank, by);
  if (!done) return "";
  if (*done) return boost::json::serialize(boost::json::object{{"ok", true}, {"rank", rank}});
  return boost::json::serialize(
      boost::json::object{{"error", json_text(done->error().message, kJsonTextBytesMax)}});
}

void ControlService::replace(const ClientPtr& client, int rank) {
  if (refuses_ranks(*client, {rank})) return;
  const std::string by = in_words("replace", *client);
  if (const std::string own = answer_to_replace(rank, by); !own.empty())
    return client->send(own + "\n");
  if (!may_await(*client, "replace")) return;
  query_.ask(
      std::nullopt,
      boost::json::serialize(boost::json::object{{"ask", "replace"}, {"rank", rank}, {"by", by}}),
      [rank, weak = std::weak_ptr(client)](const JobQuery::Outcome& outcome) {
        const auto asker = weak.lock();
        if (!asker) return;
        asker->awaited.erase("replace");
        for (const auto& [id, text] : outcome.answers) {
          if (!text.empty()) return asker->send(text + "\n");
        }
        asker->refuse("the node of rank " + std::to_string(rank) + " does not answer");
      });
}

void ControlService::drain(const ClientPtr& client, const Question& question) {
  if (!may_await(*client, question.ask)) return;
  query_.job_status([this, question, weak = std::weak_ptr(client)](const JobStatus& status) {
    const auto asker = weak.lock();
    if (!asker) return;
    asker->awaited.erase(question.ask);
    drain(*asker, status, question);
  });
}

void ControlService::drain(Client& client, const JobStatus& status,
                           const Question& question) const {
  if (!status.leader) return client.refuse("the leader of the job does not answer now");
  const bool is_undrain = question.ask == "undrain";
  const auto host = is_undrain ? host_to_undrain(*status.leader, question.node)
                               : host_to_drain(*status.leader, question.node);
  if (!host) return client.refuse(host.error().message);
  using What = rdzv::DrainAsked::What;
  const What what = is_undrain         ? What::kUndrain
                    : question.at_once ? What::kDrainAtOnce
                                       : What::kDrain;
  const auto asked =
      requests_.drain({{host->host, host->address}, what, in_words(question.ask, client)});
  if (!asked) return client.refuse(asked.error().message);
  JsonWriter answer;
  answer("ok", true);
  answer("host", host->host);
  answer("address", host->address);
  answer("leads", host->leads);
  answer("why", host->why);
  client.send(line_of(answer.object));
}

std::size_t ControlService::followers() const {
  return static_cast<std::size_t>(std::ranges::count_if(followers_, [](const auto& each) {
    const auto follower = each.lock();
    return follower && !follower->is_done();
  }));
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

// ---- followers of logs

void ControlService::LogFollower::finish(std::shared_ptr<const void> until_told) {
  follows_ = false;
  if (is_done()) return;
  until_told_ = std::move(until_told);
  if (!is_asking_) ask();
}

void ControlService::LogFollower::ask() {
  is_asking_ = true;
  LogQuery question = question_;
  question.is_final = !follows_;
  asked_as_follower_ = follows_;
  for (const auto& [whose, place] : places_) question.places.push_back(place);
  awaited_ = 2;
  const auto self = shared_from_this();
  auto has_own = std::make_shared<bool>(false);
  service_.logs_.answer(question, [self, has_own](const std::vector<LogPart>& parts) {
    if (std::exchange(*has_own, true)) return;
    self->take(parts);
    self->asked();
  });
  timer_.arm(kOwnPatience, [self, has_own] {
    if (!std::exchange(*has_own, true)) self->asked();
  });
  service_.query_.ask(std::nullopt, to_json(question), [self](const JobQuery::Outcome& outcome) {
    for (const auto& [id, text] : outcome.answers) {
      if (const auto parts = log_parts_from(text)) self->take(*parts);
    }
    self->asked();
  });
}

void ControlService::LogFollower::take(const std::vector<LogPart>& parts) {
  const auto client = client_.lock();
  if (!client) return;
  std::vector<LogPart> mute;  // told together, because there may be one for every rank
  for (const LogPart& part : parts) {
    const std::pair whose{part.next.rank, part.next.stream};
    const bool is_mute = part.source == LogPart::Source::kElsewhere || !part.trouble.empty();
    if (places_.size() < kPlacesMax || places_.contains(whose)) places_[whose] = part.next;
    if (is_mute && (told_of_.size() == kPlacesMax || !told_of_.insert(whose).second)) continue;
    if (is_mute) {
      mute.push_back(part);
    } else if (!part.text.empty() || part.missed > 0) {
      client->send(to_json({part}) + "\n");
    }
  }
  if (!mute.empty()) client->send(to_json(mute) + "\n");
}

void ControlService::LogFollower::asked() {
  if (--awaited_ > 0) return;
  timer_.cancel();
  is_asking_ = false;
  const bool was_last = !asked_as_follower_;
  if (was_last) until_told_.reset();
  const auto client = client_.lock();
  if (!client || !client->is_open()) return;
  if (was_last) {
    is_done_ = true;
    client->send(kEnd);
    return;
  }
  if (!follows_) return ask();  // the job has ended in between
  ask_later();
}

// Waits while the client does not read; nothing is lost, because the logs keep it.
void ControlService::LogFollower::ask_later() {
  const auto followers = static_cast<int>(service_.followers());
  timer_.arm(kLogInterval * std::max(1, followers), [self = shared_from_this()] {
    const auto client = self->client_.lock();
    if (!client || !client->is_open()) return;
    if (client->unread() > kUnreadLogBytesMax) return self->ask_later();
    self->ask();
  });
}

}  // namespace ddprun::agent
