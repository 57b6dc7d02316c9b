// The text of /metrics: the status of this node in Prometheus' format; values of the whole job are
// the same on all nodes. Names and meanings stay compatible: agent/README.md lists them. Pure.
#pragma once

#include <string>

#include "agent/status/job_view.h"

namespace ddprun::agent {

std::string metrics_text(const NodeStatus& status, const JobIdentity& job);

}  // namespace ddprun::agent
