// What the commands of ddpctl have in common. Each command adds itself to the command line, and
// runs if it was given; ddprun's main calls run_ddpctl when it was started under that name.
#pragma once

#include <functional>

#include "rendezvous/common/result.h"

namespace CLI {
class App;
}

namespace ddprun::cli {

int run_ddpctl(int argc, char** argv);

// Prints the error as one sentence on stderr; returns `code`.
int report(const Error& error, int code);

// Each adds one command to the command line. Call the returned function after the line was parsed:
// it runs the command and returns the exit code.
std::function<int()> add_store_command(CLI::App& app);
std::function<int()> add_leader_command(CLI::App& app);
std::function<int()> add_status_command(CLI::App& app);
std::function<int()> add_logs_command(CLI::App& app);
std::function<int()> add_events_command(CLI::App& app);
std::function<int()> add_stop_command(CLI::App& app);
std::function<int()> add_restart_command(CLI::App& app);
std::function<int()> add_replay_command(CLI::App& app);
std::function<int()> add_doctor_command(CLI::App& app);

}  // namespace ddprun::cli
