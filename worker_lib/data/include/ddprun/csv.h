// CSV files of numbers, with a column of labels if there is one; nothing of Torch (csv_dataset in
// datasets.h makes tensors). Blocking; any thread.
//
// As RFC 4180 describes it: fields may be in double quotes, with "" for a quote, and may then hold
// separators and line ends. Spaces around a number are ignored, as are empty lines and a byte-order
// mark. Whether the first line names the columns must be said: it is not guessed, since a guess
// that fails loses a sample without a word.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/common/result.h"

namespace ddprun {

struct CsvOptions {
  char separator = ',';
  bool has_header = true;
  // The column of labels, by its name in the header or by its number from 0 (from -1: backwards
  // from the last); neither: all columns are numbers.
  std::string label = {};
  std::optional<int> label_column = {};
  std::optional<double> missing = {};  // what an empty field is; nothing: an error
  bool labels_are_names = false;       // also those that are numbers (csv_dataset)
};

struct CsvTable {
  std::vector<std::string> columns;  // of numbers; without a header "0", "1", …
  std::int64_t rows = 0;
  std::vector<double> values;       // row by row
  std::vector<std::string> labels;  // of each row, as they are written; empty without that column
};

// Errors name the file, the line and the column.
Result<CsvTable> read_csv(const std::string& path, const CsvOptions& options = {});
// The same for a text; `name` stands for the file in errors.
Result<CsvTable> parse_csv(const std::string& text, const std::string& name,
                           const CsvOptions& options = {});

// A number as CSV files have it: nothing but the number, with a '+' perhaps.
std::optional<double> number_from(const std::string& text);

}  // namespace ddprun
