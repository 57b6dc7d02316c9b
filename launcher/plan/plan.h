// Everything that is decided about a job before a process exists: the agent's Job, the origin of
// each setting, and what the user should be told. Made by functions of their arguments, of the file
// system (through `Surroundings`), of the token's file and, under Slurm, of munge. --dry-run prints
// it, but never the token; tests compare it.
#pragma once

#include <string>
#include <vector>

#include "agent/job.h"
#include "launcher/machine/placement.h"
#include "launcher/plan/program.h"
#include "launcher/plan/rendezvous_options.h"
#include "launcher/settings/settings.h"
#include "rendezvous/common/result.h"

namespace ddprun::cli {

struct Surroundings {
  SearchPlaces places;
  agent::Machine machine;
  std::string random_run_id;  // for jobs without one
  std::string munge_library = rdzv::kMungeLibrary;
  bool is_first_process = false;  // process 1: all others end with this one
};

struct Plan {
  agent::Job job;
  Rendezvous rendezvous;
  Settings settings;
  std::vector<std::string> notes;     // how a value was found: for --dry-run and the log
  std::vector<std::string> warnings;  // for stderr
  std::string last_line = "";         // one of them that is printed at the end, too; empty: none
};

// An Error is a sentence for the user; nothing was started. kNotFound and kPermissionDenied are
// about the program (see program.h), everything else is wrong usage.
Result<Plan> make_plan(const Settings& settings, const std::vector<std::string>& command,
                       const Environment& environment, const Surroundings& surroundings);

// Checks that the job's outputs can be written: makes the log directory, opens the event file and
// tries the descriptor. Call it before anything is started, and not for a dry run.
Result<void> prepare_outputs(const Plan& plan);

// What --dry-run prints: a table for people; JSON for programs, in one line, where "settings" holds
// each option's {"value", "origin"} and "job" is what the agent gets. Pure (plan_text.cpp).
std::string to_table(const Plan& plan);
std::string to_json(const Plan& plan);

}  // namespace ddprun::cli
