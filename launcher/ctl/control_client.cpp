#include "launcher/ctl/control_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <cstdio>
#include <map>
#include <set>

#include "agent/query/control_folder.h"
#include "launcher/ctl/ddpctl.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/time_text.h"

namespace ddprun::cli {
namespace {

namespace json = boost::json;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How long a job may take to say who it is. A slower one is listed too, and may be chosen.
constexpr milliseconds kWhoPatience{500};
constexpr std::size_t kReadBytes = std::size_t{64} * 1024;

struct Candidate {
  ControlClient client;
  std::string socket;
  std::string job;  // empty: it has not said who it is
  std::string key;
  std::string program;
  std::string state;
  std::string folder;
  std::string started;
};

struct Found {
  std::vector<Candidate> jobs;
  std::vector<std::string> dead;
  std::optional<Error> refused;  // the first folder or socket that is not this user's
};

// Decides without asking the job: so no command waits for another job that hangs.
bool may_be_meant(const std::string& socket, pid_t agent, const std::string& job) {
  if (job.empty() || std::to_string(agent) == job) return true;
  std::string name = agent::control_name(job);
  if (socket == name) return true;
  name.resize(name.size() - std::string_view("sock").size());
  return socket.starts_with(name);
}

std::string in_words(const Candidate& job) {
  return "'" + job.job + "', " + job.program + ", " + job.state + ", pid " +
         std::to_string(job.client.agent()) + (job.folder.empty() ? "" : ", in " + job.folder) +
         (job.started.empty() ? "" : ", started " + job.started);
}

// Only those that `job` may mean; all if it is empty.
Found look(const std::string& job) {
  Found found;
  const uid_t user = ::geteuid();
  for (const std::string& path : agent::control_folders(environment_from(environ), user)) {
    const auto folder = agent::open_control_folder(path, user, /*makes_it=*/false);
    if (!folder) {
      if (folder.error().code == ErrorCode::kPermissionDenied && !found.refused) {
        found.refused = folder.error();
      }
      continue;
    }
    std::vector<std::string> dead;
    for (const std::string& name : agent::control_sockets_in(*folder)) {
      auto socket = agent::connect_control(*folder, name, user);
      if (!socket) {
        const auto code = socket.error().code;
        if (code == ErrorCode::kUnavailable) dead.push_back(name);
        if (code == ErrorCode::kPermissionDenied && !found.refused) {
          found.refused = std::move(socket.error()).with("folder", path);
        }
        continue;
      }
      const pid_t agent = agent::peer_of(socket->get()).value_or(ucred{}).pid;
      if (!may_be_meant(name, agent, job)) continue;
      found.jobs.push_back(
          {ControlClient(std::move(*socket), agent), name, {}, {}, {}, {}, {}, {}});
    }
    for (const std::string& name : dead) found.dead.push_back(path + "/" + name);
    if (!dead.empty()) agent::remove_left_over(*folder, dead, user);
  }
  // All at the same time, so that several that hang cost the time limit only once.
  for (Candidate& each : found.jobs) static_cast<void>(each.client.say(R"({"ask":"who"})"));
  const auto until = steady_clock::now() + kWhoPatience;
  for (Candidate& each : found.jobs) {
    const auto left = std::chrono::ceil<milliseconds>(until - steady_clock::now());
    const auto line = each.client.line(std::max(left, milliseconds(1)));
    if (!line && line.error().code == ErrorCode::kTimeout) each.client.give_up_answer();
    if (!line || !*line) continue;
    const json::object who = object_in(**line);
    each.job = field(who, "job");
    each.key = field(who, "key");
    each.program = field(who, "program");
    each.state = field(who, "state");
    each.folder = field(who, "folder");
    const auto* began = who.if_contains("began_unix_us");
    if (began != nullptr && began->is_int64()) {
      const std::chrono::system_clock::time_point when{
          std::chrono::microseconds(began->as_int64())};
      each.started = time_text("%Y-%m-%d %H:%M:%S", when);
    }
    each.client.set_about(in_words(each));
  }
  return found;
}

std::string list_of(const std::vector<Candidate>& jobs) {
  std::string text;
  for (const Candidate& each : jobs) {
    text += "\n  " + std::to_string(each.client.agent()) + "  " +
            printable(each.job.empty() ? each.socket + ", which does not say who it is"
                                       : "job " + each.client.about());
  }
  return text;
}

bool is_meant(const Candidate& candidate, const std::string& job) {
  return job.empty() || candidate.job == job || std::to_string(candidate.client.agent()) == job ||
         (candidate.job.empty() && candidate.socket == agent::control_name(job));
}

// "train.py" for src/train.py too.
bool runs(const Candidate& candidate, const std::string& program) {
  const std::string& own = candidate.program;
  return !program.empty() && (own == program || own.substr(own.rfind('/') + 1) == program);
}

// Several agents of one job count as one; any of them can answer.
std::set<std::string> keys_of(const std::vector<Candidate>& jobs) {
  std::set<std::string> keys;
  for (const Candidate& each : jobs) {
    keys.insert(each.key.empty() ? std::to_string(each.client.agent()) : each.key);
  }
  return keys;
}

bool is_plain_word(std::string_view text) {
  return !text.empty() && text.front() != '-' && std::ranges::all_of(text, [](char c) {
    return std::string_view("._+-/").find(c) != std::string_view::npos || (c >= '0' && c <= '9') ||
           (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  });
}

}  // namespace

int exit_code_of(const Error& error) {
  if (error.code == ErrorCode::kNotFound) return kNoJob;
  if (error.code == ErrorCode::kInvalidArgument) return kSeveralJobs;
  if (error.code == ErrorCode::kTimeout) return kJobSilent;
  return error.code == ErrorCode::kPermissionDenied ? kNotYours : kJobFailed;
}

Result<void> ControlClient::say(std::string_view request) {
  const std::string line = std::string(request) + "\n";
  // A request fits into the socket's buffer.
  if (::send(socket_.get(), line.data(), line.size(), MSG_NOSIGNAL) ==
      static_cast<ssize_t>(line.size())) {
    return {};
  }
  return fail(error_from_errno(errno, "cannot ask the job"));
}

Result<std::optional<std::string>> ControlClient::line(milliseconds patience) {
  const auto until = steady_clock::now() + patience;
  for (;;) {
    if (const auto end = received_.find('\n'); end != std::string::npos) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      if (given_up_ == 0) return line;
      given_up_ -= 1;
      continue;
    }
    const auto left = std::chrono::ceil<milliseconds>(until - steady_clock::now()).count();
    pollfd ready{socket_.get(), POLLIN, 0};
    const int timeout = patience.count() == 0 ? -1 : static_cast<int>(std::max<long>(left, 0));
    const int count = ::poll(&ready, 1, timeout);
    if (count < 0 && errno != EINTR)
      return fail(error_from_errno(errno, "cannot wait for the job"));
    if (count == 0) {
      const std::string pid = std::to_string(agent_);
      return fail(ErrorCode::kTimeout,
                  "the job's agent (pid " + pid + ") does not answer within " +
                      std::to_string(patience.count() / 1000) +
                      " s: it is stopped or hangs; see ps, or end it by kill -9 " + pid +
                      ", which ends its workers too");
    }
    const std::size_t before = received_.size();
    received_.resize(before + kReadBytes);
    const ssize_t got = ::recv(socket_.get(), received_.data() + before, kReadBytes, MSG_DONTWAIT);
    received_.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return std::nullopt;
    if (got < 0 && errno != EAGAIN && errno != EINTR) {
      if (errno == ECONNRESET) return std::nullopt;
      return fail(error_from_errno(errno, "cannot hear the job"));
    }
  }
}

Result<std::string> ControlClient::answer() {
  auto got = line(kPatience);
  if (!got) return fail(std::move(got.error()));
  if (!*got) return fail(ErrorCode::kClosed, "the job ended before it answered");
  const json::object object = object_in(**got);
  if (object.contains("error")) return fail(ErrorCode::kClosed, field(object, "error"));
  return std::move(**got);
}

Result<ControlClient> find_job(const std::string& job) {
  Found found = look(job);
  std::vector<Candidate> meant;
  const auto take = [&](bool (*is_it)(const Candidate&, const std::string&)) {
    for (Candidate& each : found.jobs) {
      if (is_it(each, job)) meant.push_back(std::move(each));
    }
  };
  take(is_meant);
  const bool has_id = !meant.empty();
  if (!has_id && !job.empty()) {
    found = look("");
    take(runs);
  }
  if (keys_of(meant).size() > 1) {
    const std::string count = std::to_string(keys_of(meant).size());
    const std::string which = job.empty() ? "several jobs run on this node"
                              : has_id    ? count + " jobs are called '" + job + "' on this node"
                                          : count + " jobs run " + job + " on this node";
    return fail(ErrorCode::kInvalidArgument,
                which + "; name one by the process id of its agent:" + list_of(meant));
  }
  if (!meant.empty()) return std::move(meant.front().client);
  if (found.refused) return fail(std::move(*found.refused));
  std::string sentence =
      job.empty() ? "no job of yours runs on this node" : "no job '" + job + "' runs on this node";
  if (!found.jobs.empty()) sentence += "; there are:" + list_of(found.jobs);
  constexpr std::size_t kDeadShown = 3;
  for (std::size_t i = 0; i < std::min(found.dead.size(), kDeadShown); ++i) {
    sentence += "\n  " + found.dead[i] + " was left over by a job that was killed";
  }
  if (found.dead.size() > kDeadShown) {
    sentence += "\n  and " + std::to_string(found.dead.size() - kDeadShown) + " more of these";
  }
  for (const agent::KeptMemory& each : memories_of(job, kWhoPatience)) {
    if (!each.is_in_use && !each.is_silent) sentence += "\n  " + sentence_about(each);
  }
  return fail(ErrorCode::kNotFound, sentence);
}

std::string lines_about_jobs(bool have_ended) {
  struct Job {
    std::string id;
    pid_t agent = 0;
    std::string about;
  };
  std::map<std::string, Job> jobs;
  if (have_ended) {
    for (const agent::KeptMemory& each : memories_of("", kWhoPatience)) {
      if (each.is_in_use || each.is_silent) continue;
      jobs.try_emplace(each.owner.job, Job{each.owner.job, each.agent, agent::describe(each)});
    }
  } else {
    for (const Candidate& each : look("").jobs) {
      const pid_t agent = each.client.agent();
      jobs.try_emplace(each.key.empty() ? std::to_string(agent) : each.key,
                       Job{each.job, agent, each.program + ", " + each.state});
    }
  }
  std::map<std::string, int> count;
  for (const auto& [key, job] : jobs) count[job.id] += 1;
  std::string lines;
  for (const auto& [key, job] : jobs) {
    const bool has_name = is_plain_word(job.id) && count[job.id] == 1;
    lines += (has_name ? job.id : std::to_string(job.agent)) + "\t" + printable(job.about) + "\n";
  }
  return lines;
}

std::vector<agent::KeptMemory> memories_of(const std::string& job, milliseconds patience) {
  auto memories =
      agent::find_memories(environment_from(environ), ::geteuid(), /*run_id=*/"", patience);
  std::erase_if(memories, [&job](const agent::KeptMemory& each) {
    const bool is_meant = job.empty() || each.owner.job == job ||
                          std::to_string(each.agent) == job ||
                          (each.is_silent && each.socket.starts_with(agent::control_prefix(job)));
    return !is_meant;
  });
  return memories;
}

std::string sentence_about(const agent::KeptMemory& memory) {
  const std::string job = printable(memory.owner.job);
  return "job '" + job + "': its ddprun has ended; " + agent::describe(memory) +
         " ('ddpctl forget " + job + "' frees them)";
}

json::object object_in(std::string_view line) {
  boost::system::error_code ec;
  const json::value value = json::parse(json::string_view(line.data(), line.size()), ec);
  return !ec && value.is_object() ? value.as_object() : json::object();
}

std::string field(const json::object& object, std::string_view name) {
  const auto* found = object.if_contains(json::string_view(name.data(), name.size()));
  return found != nullptr && found->is_string() ? std::string(found->as_string()) : "";
}

int print_answer(const std::string& job, const std::string& request, milliseconds first,
                 milliseconds next, const std::function<int(const std::string& line)>& print) {
  auto client = find_job(job);
  if (!client) return report(client.error(), exit_code_of(client.error()));
  if (auto asked = client->say(request); !asked) return report(asked.error(), kJobFailed);
  for (milliseconds patience = first;; patience = next) {
    const auto line = client->line(patience);
    if (!line) return report(line.error(), exit_code_of(line.error()));
    if (!*line || **line == R"({"end":true})") return kJobDone;
    const json::object object = object_in(**line);
    if (object.contains("error")) return report(field(object, "error"), kJobFailed);
    if (const int code = print(**line); code != kJobDone) return code;
    if (std::fflush(stdout) != 0) return kJobFailed;
  }
}

}  // namespace ddprun::cli
