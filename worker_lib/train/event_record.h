// The bytes of TensorBoard's event files: protobuf messages, and the records around them. Pure; any
// thread.
//
//   record: u64 length, u32 masked CRC-32C of the length, the message, u32 masked CRC-32C of it,
//           all little-endian (TFRecord)
//   message Event   (event.proto):   1 double wall_time, 2 int64 step, 3 string file_version,
//                                    5 Summary summary, 7 SessionLog session_log
//   message Summary (summary.proto): 1 repeated Value { 1 string tag, 2 float simple_value }
//   message SessionLog (event.proto): 1 enum status (1: a run starts at this step)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ddprun::event_record {

// Events, as protobuf. `wall_time`: seconds since 1970.
std::string version_event(double wall_time);  // the first of every file
std::string start_event(double wall_time, std::int64_t step);
std::string scalar_event(double wall_time, std::int64_t step, std::string_view tag, float value);

std::string record(std::string_view event);

}  // namespace ddprun::event_record
