// Reads data files for tests/compat/data_files_python.py:
//   data_files_probe npy IN OUT             reads a .npy and writes what it read as another
//   data_files_probe csv IN HEADER LABEL    prints the numbers exactly (%a), and the labels
#include <cstdio>
#include <string>

#include "ddprun/csv.h"
#include "ddprun/npy.h"

namespace {

int complain(const ddprun::Error& error) {
  std::fprintf(stderr, "%s\n", error.message.c_str());
  return 1;
}

int copy_npy(const std::string& in, const std::string& out) {
  const auto array = ddprun::read_npy(in);
  if (!array) return complain(array.error());
  const auto written = ddprun::write_npy(out, *array);
  return written ? 0 : complain(written.error());
}

int print_csv(const std::string& in, bool has_header, int label) {
  ddprun::CsvOptions options{.has_header = has_header};
  if (label >= 0) options.label_column = label;
  const auto table = ddprun::read_csv(in, options);
  if (!table) return complain(table.error());
  for (const std::string& name : table->columns) std::printf("column %s\n", name.c_str());
  for (const double value : table->values) std::printf("value %a\n", value);
  for (const std::string& text : table->labels) std::printf("label %s\n", text.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "npy") return copy_npy(argv[2], argv[3]);
  if (argc == 5 && std::string(argv[1]) == "csv") {
    return print_csv(argv[2], std::string(argv[3]) == "1", std::atoi(argv[4]));
  }
  return 2;
}
