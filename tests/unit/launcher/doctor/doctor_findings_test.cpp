#include "launcher/doctor/doctor_findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

namespace ddprun::cli::doctor {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

void expect_ok(const Finding& finding) {
  EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.what;
  EXPECT_THAT(finding.what, Not(IsEmpty()));
  EXPECT_THAT(finding.advice, IsEmpty());
}

// What is to be looked at comes with what to do.
void expect_look(const Finding& finding, const std::string& advice) {
  EXPECT_EQ(finding.verdict, Verdict::kLook) << finding.what;
  EXPECT_THAT(finding.what, Not(IsEmpty()));
  EXPECT_THAT(finding.advice, HasSubstr(advice));
}

TEST(Doctor, FindsAnotherDdprunOnThePath) {
  const std::string own = "ddprun 0.1.0 (round protocol 3)";
  expect_ok(judge_ddprun({own, "/usr/bin/ddprun", own}));
  expect_look(judge_ddprun({own, "/usr/bin/ddprun", "ddprun 0.0.9 (round protocol 2)"}),
              "one version");
  EXPECT_EQ(judge_ddprun({own, "", ""}).verdict, Verdict::kNote) << "it was called by its path";
}

TEST(Doctor, AnOldKernelWillDo) {
  expect_ok(judge_kernel("6.1.0-13-amd64"));
  expect_ok(judge_kernel("4.18.0-305.el8"));
}

TEST(Doctor, APythonWithoutTorchIsNoFault) {
  expect_ok(judge_python({}));
  expect_ok(judge_python({"/usr/bin/python3", "3.11.2", ""}));
  EXPECT_THAT(judge_python({"/usr/bin/python3", "3.11.2", "2.11.0"}).what, HasSubstr("torch 2.11"));
  expect_look(judge_python({"/usr/bin/python3", "", ""}), "PYTHON_EXEC");
}

TEST(Doctor, ListsTheMemoryThatJobsHaveLeft) {
  expect_ok(judge_kept_memory({}));
  const auto finding =
      judge_kept_memory({{"mnist", std::uint64_t{24} << 20, 512s, false}, {.is_silent = true}});
  expect_look(finding, "ddpctl forget");
  EXPECT_EQ(finding.what,
            "24 MiB of job 'mnist' for another 512 s, some whose process (ddprun-memory) does not "
            "answer");
}

TEST(Doctor, LooksAtPortsInTheWay) {
  const PortFacts usual{.first_ephemeral = 32768, .last_ephemeral = 60999};
  expect_ok(judge_ports(usual));
  PortFacts facts = usual;
  facts.listen_error = "Operation not permitted";
  expect_look(judge_ports(facts), "network");
  facts = usual;
  facts.taken = {29500};
  expect_look(judge_ports(facts), "--master-port");
  facts = {.first_ephemeral = 60000, .last_ephemeral = 60100};
  expect_look(judge_ports(facts), "ip_local_port_range");
  facts = {.first_ephemeral = 1024, .last_ephemeral = 65535};
  expect_look(judge_ports(facts), "ip_local_reserved_ports");
  facts.reserved = {29400, 29500};
  expect_ok(judge_ports(facts));
}

TEST(Doctor, OwnNameMustBeFoundQuicklyAndMeanAnAddressThatOthersReach) {
  NameFacts facts{.name = "node7", .took = 3ms, .addresses = {"10.0.0.7"}};
  expect_ok(judge_own_name(facts));
  facts.took = 2s;
  expect_look(judge_own_name(facts), "/etc/hosts");
  facts = {.name = "node7", .addresses = {"127.0.1.1"}};
  expect_look(judge_own_name(facts), "--master-addr");
  facts = {.name = "node7", .error = "Name or service not known"};
  expect_look(judge_own_name(facts), "/etc/hosts");
  facts = {.name = "node7", .took = 5s, .was_in_time = false};
  expect_look(judge_own_name(facts), "name server");
}

TEST(Doctor, NamesTheAddressesWhoseReverseLookUpIsSlow) {
  expect_ok(judge_reverse({{"127.0.0.1", 0ms}, {"10.0.0.7", 20ms}}));
  const Finding slow = judge_reverse({{"127.0.0.1", 0ms}, {"10.0.0.7", 700ms}});
  expect_look(slow, "/etc/hosts");
  EXPECT_THAT(slow.what, HasSubstr("10.0.0.7 (700 ms)"));
  EXPECT_THAT(slow.what, Not(HasSubstr("127.0.0.1")));
  EXPECT_THAT(judge_reverse({{"10.0.0.7", 5s, false}}).what, HasSubstr("given up after 5.0 s"));
}

TEST(Doctor, LooksAtClocksThatCannotBeTrusted) {
  ClockFacts usual{.source = "tsc", .reading_ns = 25, .is_synchronised = true, .error_max = 12ms};
  expect_ok(judge_clock(usual));
  usual.is_synchronised.reset();
  expect_ok(judge_clock(usual));
  ClockFacts facts = usual;
  facts.is_synchronised = false;
  expect_look(judge_clock(facts), "chrony");
  facts = usual;
  facts.stepped_by = -300ms;
  expect_look(judge_clock(facts), "sets it");
  facts = usual;
  facts.reading_ns = 1200;
  expect_look(judge_clock(facts), "tsc");
  facts = usual;
  facts.went_backwards = true;
  expect_look(judge_clock(facts), "clock source");
}

TEST(Doctor, OnOneNodeWhatOnlySeveralNeedIsANote) {
  const Finding name = judge_own_name({.name = "vm", .addresses = {"127.0.0.1"}});
  expect_look(name, "--master-addr");
  EXPECT_EQ(on_one_node(name).verdict, Verdict::kNote);
  EXPECT_EQ(count_to_look_at({on_one_node(name)}), 0);
  ClockFacts free_running{"tsc", 30, 0ms, false, false, {}};
  EXPECT_EQ(on_one_node(judge_clock(free_running)).verdict, Verdict::kNote);
  expect_look(on_one_node(judge_own_name({.name = "vm", .error = "unknown"})), "/etc/hosts");
}

TEST(Doctor, TellsWhyGpusCannotBeUsed) {
  expect_ok(judge_gpus({}));
  GpuFacts usual{.driver = "550.54.15",
                 .on_the_bus = 8,
                 .driven = 8,
                 .devices = 8,
                 .has_control = true,
                 .has_uvm = true};
  expect_ok(judge_gpus(usual));
  expect_look(judge_gpus({.driver = {}, .on_the_bus = 2}), "modprobe");
  GpuFacts facts = usual;
  facts.devices = 0;
  expect_look(judge_gpus(facts), "--gpus all");
  facts = usual;
  facts.has_uvm = false;
  expect_look(judge_gpus(facts), "nvidia-modprobe");
  facts = usual;
  facts.may_open = false;
  expect_look(judge_gpus(facts), "rights");
  facts = usual;
  facts.visible = "0,1";
  facts.visible_count = 2;
  expect_ok(judge_gpus(facts));
  facts.visible = "";
  facts.visible_count = 0;
  expect_look(judge_gpus(facts), "unset");
}

TEST(Doctor, LooksAtTheSharedMemoryOfAContainer) {
  expect_ok(judge_shared_memory({true, true, 8 * kGiB, 7 * kGiB}));
  const Finding docker = judge_shared_memory({true, true, 64 << 20, 64 << 20});
  expect_look(docker, "--shm-size");
  EXPECT_THAT(docker.what, HasSubstr("64 MiB"));
  expect_look(judge_shared_memory({true, true, 8 * kGiB, 0}), "ls -l /dev/shm");
  expect_look(judge_shared_memory({true, false, 8 * kGiB, 8 * kGiB}), "--shm-size");
  expect_look(judge_shared_memory({}), "--shm-size");
}

TEST(Doctor, LooksAtTightLimits) {
  expect_ok(judge_open_files(1024, 1048576));
  expect_ok(judge_open_files(std::nullopt, std::nullopt));
  expect_look(judge_open_files(256, 4096), "ulimit -n");
  expect_ok(judge_processes(std::nullopt, 192));
  expect_ok(judge_processes(15000, 8));
  expect_look(judge_processes(1024, 8), "4096");
  expect_look(judge_processes(5000, 192), "12288");
  expect_ok(judge_locked_memory(8 << 20, /*has_rdma=*/false));
  expect_ok(judge_locked_memory(std::nullopt, /*has_rdma=*/true));
  expect_look(judge_locked_memory(8 << 20, /*has_rdma=*/true), "ulimit -l");
}

TEST(Doctor, LooksAtTightCgroups) {
  expect_ok(judge_cpus({16, 16, std::nullopt}));
  expect_look(judge_cpus({64, 4, 3.5}), "usable-cpus");
  expect_ok(judge_memory({}, 200 * kGiB));
  expect_ok(judge_memory({16 * kGiB, 2 * kGiB}, 200 * kGiB));
  expect_look(judge_memory({2 * kGiB, 2 * kGiB - 5}, 200 * kGiB), "limit");
  expect_look(judge_memory({16 * kGiB, 0}, kGiB / 2), "limit");
  expect_ok(judge_tasks({}));
  expect_look(judge_tasks({1024, 900}), "--pids-limit");
}

TEST(Doctor, WhatWasNotTriedIsNotOk) {
  expect_ok(judge_store({"", 60}));
  expect_look(judge_store({"127.0.0.1:4: Connection refused", 0}), "firewall");
  EXPECT_EQ(judge_all_reduce({.by = "", .missing = "no torch found"}).verdict, Verdict::kSkipped);
  AllReduceFacts facts{.by = "Gloo", .missing = {}, .took = 3s};
  expect_ok(judge_all_reduce(facts));
  facts.ended = "exit code 1";
  facts.last_lines = "RuntimeError: Unable to find interface";
  expect_look(judge_all_reduce(facts), "Unable to find interface");
  facts.was_in_time = false;
  expect_look(judge_all_reduce(facts), "--timeout");
}

TEST(Doctor, PrintsATableWithWhatToDoUnderIt) {
  const std::vector<Finding> findings{{"kernel", Verdict::kOk, "6.1", ""},
                                      {"/dev/shm", Verdict::kLook, "64 MiB", "more of it"},
                                      {"all-reduce", Verdict::kSkipped, "no torch found", ""}};
  std::string table;
  for (const Finding& each : findings) table += to_row(each, 10);
  EXPECT_EQ(table,
            "ok          kernel       6.1\n"
            "look here   /dev/shm     64 MiB\n"
            "                         -> more of it\n"
            "skipped     all-reduce   no torch found\n");
  EXPECT_EQ(last_line(findings), "1 thing to look at.\n");
  const auto json = boost::json::parse(to_json("ddprun 1.2", findings));
  EXPECT_EQ(json.at("to_look_at").as_int64(), 1);
  EXPECT_EQ(json.at("checks").at(1).at("verdict").as_string(), "look");
  EXPECT_EQ(json.at("checks").at(2).at("what").as_string(), "no torch found");
}

}  // namespace
}  // namespace ddprun::cli::doctor
