#include "tests/support/etcd_server.h"

#include <csignal>
#include <filesystem>
#include <stdexcept>

#include "rendezvous/net/listener.h"

namespace ddprun::test {
namespace {

const std::string kPeerHost = "http://127.0.0.1:";

}  // namespace

std::string EtcdServers::obstacle() {
  for (const char* folder : {"/usr/bin/", "/usr/local/bin/", "/bin/"}) {
    if (std::filesystem::exists(std::string(folder) + "etcd")) return "";
  }
  return "there is no etcd here; scripts/setup installs it";
}

EtcdServers::EtcdServers(EtcdSetup setup) : setup_(std::move(setup)) {
  for (int member = 0; member < setup_.members; ++member) {
    auto client = rdzv::reserve_port({}).value();
    auto peer = rdzv::reserve_port({}).value();
    members_.push_back({std::move(client.socket), std::move(peer.socket), client.bound.port,
                        peer.bound.port, nullptr});
  }
  for (int member = 0; member < setup_.members; ++member) start(member);
  if (!eventually([&] { return answers(); })) {
    throw std::runtime_error("etcd does not answer:\n" + told());
  }
  if (!setup_.password.empty()) enable_users();
}

void EtcdServers::start(int member) {
  const auto name = [](int each) { return "m" + std::to_string(each); };
  const Member& own = members_.at(static_cast<std::size_t>(member));
  std::string cluster;
  for (int each = 0; each < setup_.members; ++each) {
    cluster += (each == 0 ? "" : ",") + name(each) + "=" + kPeerHost +
               std::to_string(members_[static_cast<std::size_t>(each)].peer_port);
  }
  Command command{"etcd",
                  "--name=" + name(member),
                  "--data-dir=" + (folder_ / name(member)),
                  "--listen-client-urls=" + url(member),
                  "--advertise-client-urls=" + url(member),
                  "--listen-peer-urls=" + kPeerHost + std::to_string(own.peer_port),
                  "--initial-advertise-peer-urls=" + kPeerHost + std::to_string(own.peer_port),
                  "--initial-cluster=" + cluster,
                  "--log-level=error"};
  if (!setup_.quota_bytes.empty()) {
    command.push_back("--quota-backend-bytes=" + setup_.quota_bytes);
  }
  if (setup_.certificates != nullptr) {
    command.push_back("--cert-file=" + setup_.certificates->server);
    command.push_back("--key-file=" + setup_.certificates->server_key);
    if (setup_.wants_client_certificate) {
      command.push_back("--client-cert-auth");
      command.push_back("--trusted-ca-file=" + setup_.certificates->ca);
    }
  }
  members_[static_cast<std::size_t>(member)].job = std::make_unique<Job>(command);
}

void EtcdServers::kill(int member) {
  Job& job = *members_.at(static_cast<std::size_t>(member)).job;
  job.signal(SIGKILL);
  job.wait();
}

int EtcdServers::leader() {
  int found = -1;
  eventually([&] {
    for (int member = 0; member < setup_.members && found < 0; ++member) {
      // …, "leader":1,…,"member_id":1,…
      const std::string status =
          etcdctl({"endpoint", "status", "-w", "json", "--endpoints=" + url(member)}, seconds(3));
      const auto number = [&](const std::string& key) {
        const auto at = status.find("\"" + key + "\":");
        if (at == std::string::npos) return std::string();
        const auto begin = at + key.size() + 3;
        return status.substr(begin, status.find_first_not_of("0123456789", begin) - begin);
      };
      if (!number("leader").empty() && number("leader") == number("member_id")) found = member;
    }
    return found >= 0;
  });
  return found;
}

std::string EtcdServers::url(int member) const {
  return (setup_.certificates == nullptr ? "http://" : "https://") + endpoint(member);
}

std::string EtcdServers::endpoint(int member) const {
  return "127.0.0.1:" + std::to_string(members_.at(static_cast<std::size_t>(member)).client_port);
}

std::string EtcdServers::endpoints() const {
  std::string all;
  for (int member = 0; member < setup_.members; ++member) {
    all += (member == 0 ? "" : ",") + endpoint(member);
  }
  return all;
}

std::string EtcdServers::etcdctl(const Command& arguments, milliseconds deadline) const {
  Command command{"etcdctl", "--dial-timeout=1s", "--command-timeout=5s"};
  bool has_endpoints = false;
  for (const std::string& each : arguments) has_endpoints |= each.starts_with("--endpoints");
  if (!has_endpoints) command.push_back("--endpoints=" + endpoints());
  if (setup_.certificates != nullptr) {
    command.push_back("--cacert=" + setup_.certificates->ca);
    command.push_back("--cert=" + setup_.certificates->client);
    command.push_back("--key=" + setup_.certificates->client_key);
  }
  if (has_users_) command.push_back("--user=root:" + setup_.password);
  command.insert(command.end(), arguments.begin(), arguments.end());
  Job job(command, {.environment = {{"ETCDCTL_API", "3"}}});
  return job.wait(deadline) == exited(0) ? job.out() : "";
}

std::string EtcdServers::get(const std::string& key) const {
  return etcdctl({"get", "--print-value-only", key});
}

bool EtcdServers::answers() const {
  return !etcdctl({"endpoint", "health", "-w", "json"}, seconds(8)).empty();
}

void EtcdServers::enable_users() {
  etcdctl({"user", "add", "root:" + setup_.password});
  etcdctl({"auth", "enable"});
  has_users_ = true;
}

std::string EtcdServers::told() const {
  std::string text;
  for (const Member& each : members_) {
    if (each.job) text += each.job->err();
  }
  return text;
}

int leading_node(const Cluster& cluster, const EtcdServers& etcd, const std::string& prefix) {
  // …,"address":"HOST:PORT"}
  const std::string key = etcd.get(prefix + "/job/leader");
  const auto end = key.rfind('"');
  const auto colon = key.rfind(':');
  if (end == std::string::npos || colon == std::string::npos || colon > end) return -1;
  return cluster.node_at(static_cast<std::uint16_t>(std::stoi(key.substr(colon + 1))));
}

}  // namespace ddprun::test
