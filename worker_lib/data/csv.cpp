#include "ddprun/csv.h"

#include <locale.h>

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "worker_lib/process/files.h"

namespace ddprun {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// Splits a text into rows of fields and knows the line that each row began on.
class Rows {
 public:
  Rows(std::string_view text, char separator) : text_(text), separator_(separator) {
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    if (text_.starts_with(kByteOrderMark)) text_.remove_prefix(kByteOrderMark.size());
  }

  // False at the end. An error is about `line()`.
  Result<bool> next(std::vector<std::string>& fields) {
    fields.clear();
    while (take_line_end()) {
    }
    if (at_ == text_.size()) return false;
    line_ = next_line_;
    for (;;) {
      auto field = take_field();
      if (!field) return fail(std::move(field.error()));
      fields.push_back(std::move(*field));
      if (at_ < text_.size() && text_[at_] == separator_) {
        ++at_;
        continue;
      }
      take_line_end();
      return true;
    }
  }
  std::int64_t line() const { return line_; }

 private:
  bool take_line_end() {
    if (at_ == text_.size()) return false;
    const std::size_t size = text_.substr(at_).starts_with("\r\n") ? 2 : 1;
    if (size == 1 && text_[at_] != '\n' && text_[at_] != '\r') return false;
    at_ += size;
    ++next_line_;
    return true;
  }
  bool is_at_end_of_field() const {
    return at_ == text_.size() || text_[at_] == separator_ || text_[at_] == '\n' ||
           text_[at_] == '\r';
  }

  Result<std::string> take_field() {
    std::size_t quote = at_;
    while (quote < text_.size() && text_[quote] == ' ') ++quote;
    if (quote < text_.size() && text_[quote] == '"') {
      at_ = quote + 1;
      return take_quoted();
    }
    const std::size_t begin = at_;
    while (!is_at_end_of_field()) ++at_;
    return std::string(trimmed(text_.substr(begin, at_ - begin)));
  }

  Result<std::string> take_quoted() {
    std::string field;
    const std::int64_t opened = next_line_;
    for (;; ++at_) {
      if (at_ == text_.size()) {
        return fail(ErrorCode::kDataLoss, "a quote that is opened in line " +
                                              std::to_string(opened) + " is never closed");
      }
      if (text_[at_] == '"') {
        if (!text_.substr(at_ + 1).starts_with('"')) break;
        ++at_;
      }
      if (text_[at_] == '\n') ++next_line_;
      field += text_[at_];
    }
    ++at_;
    while (at_ < text_.size() && text_[at_] == ' ' && separator_ != ' ') ++at_;
    if (!is_at_end_of_field()) {
      return fail(ErrorCode::kDataLoss,
                  "there is text behind a closing quote (a quote inside a field is written \"\")");
    }
    return field;
  }

  std::string_view text_;
  char separator_;
  std::size_t at_ = 0;
  std::int64_t line_ = 0;
  std::int64_t next_line_ = 1;
};

class Reader {
 public:
  Reader(const std::string& text, const std::string& name, const CsvOptions& options)
      : rows_(text, options.separator), name_(name), options_(options) {}

  Result<CsvTable> read() {
    if (!options_.label.empty() && (options_.label_column || !options_.has_header)) {
      return fail(ErrorCode::kInvalidArgument,
                  "the label column '" + options_.label + "' of " + name_ +
                      (options_.label_column ? " is given by a number too: give one of the two"
                                             : " is given by its name, and there is no header: "
                                               "give its number (label_column)"));
    }
    std::vector<std::string> fields;
    for (bool is_first = true;; is_first = false) {
      const auto is_there = rows_.next(fields);
      if (!is_there) return damaged(is_there.error().message);
      if (!*is_there) break;
      if (is_first) {
        if (auto known = know_columns(fields); !known) return fail(std::move(known.error()));
        if (options_.has_header) continue;
      }
      if (auto added = add(fields); !added) return fail(std::move(added.error()));
    }
    if (table_.rows == 0) {
      return fail(
          ErrorCode::kDataLoss,
          name_ + " has no rows of data" +
              (options_.has_header ? " (its first line was taken for the columns' names)" : ""));
    }
    return std::move(table_);
  }

 private:
  tl::unexpected<Error> damaged(const std::string& what) const {
    return fail(ErrorCode::kDataLoss,
                name_ + ", line " + std::to_string(rows_.line()) + ": " + what);
  }

  // From the first row, which has the names or is data already.
  Result<void> know_columns(const std::vector<std::string>& first) {
    width_ = static_cast<int>(first.size());
    if (options_.label_column) {
      label_ = *options_.label_column + (*options_.label_column < 0 ? width_ : 0);
      if (label_ < 0 || label_ >= width_) {
        return fail(ErrorCode::kInvalidArgument,
                    name_ + " has " + std::to_string(width_) + " columns, there is no number " +
                        std::to_string(*options_.label_column) + " for the labels");
      }
    }
    std::string all;
    for (int i = 0; i < width_; ++i) {
      const std::string& name = first[static_cast<std::size_t>(i)];
      if (options_.has_header) {
        if (!options_.label.empty() && name == options_.label && label_ < 0) label_ = i;
        all += (i > 0 ? ", " : "") + name;
      }
      if (i != label_) table_.columns.push_back(options_.has_header ? name : std::to_string(i));
    }
    if (!options_.label.empty() && label_ < 0) {
      return fail(ErrorCode::kInvalidArgument, name_ + " has no column '" + options_.label +
                                                   "' for the labels; its columns are " + all);
    }
    return {};
  }

  Result<void> add(std::vector<std::string>& fields) {
    if (static_cast<int>(fields.size()) != width_) {
      return damaged("it has " + std::to_string(fields.size()) + " fields, the lines before it " +
                     std::to_string(width_));
    }
    std::size_t column = 0;
    for (int i = 0; i < width_; ++i) {
      std::string& field = fields[static_cast<std::size_t>(i)];
      if (i == label_) {
        table_.labels.push_back(std::move(field));
        continue;
      }
      const auto number = field.empty() ? options_.missing : number_from(field);
      if (!number) return damaged(no_number(i, column, field));
      table_.values.push_back(*number);
      ++column;
    }
    ++table_.rows;
    return {};
  }

  std::string no_number(int i, std::size_t column, const std::string& field) const {
    std::string text = "column " + std::to_string(i);
    if (options_.has_header) text += " ('" + table_.columns[column] + "')";
    if (field.empty()) return text + " is empty: say what that means with the option `missing`";
    constexpr std::size_t kMost = 40;
    text += " has '" + field.substr(0, kMost) + (field.size() > kMost ? "…" : "") +
            "', which is no number";
    if (table_.rows == 0 && !options_.has_header) {
      text += "; if the first line names the columns, set has_header";
    }
    return text;
  }

  Rows rows_;
  const std::string& name_;
  const CsvOptions& options_;
  int width_ = 0;
  int label_ = -1;
  CsvTable table_;
};

// strtod() takes the locale's decimal point; this one the "C" locale's, whatever the program has set.
double strtod_of_c(const std::string& digits) {
  static const locale_t c = ::newlocale(LC_ALL_MASK, "C", nullptr);
  return ::strtod_l(digits.c_str(), nullptr, c);
}

}  // namespace

std::optional<double> number_from(const std::string& text) {
  std::string_view digits = trimmed(text);
  if (digits.starts_with('+') && !digits.substr(1).starts_with('-')) digits.remove_prefix(1);
  double value = 0;
  const char* const end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, value);
  if (parsed.ptr != end || digits.empty()) return std::nullopt;
  // Too large or too small for a double: infinity or zero, as Python's float() has it.
  if (parsed.ec == std::errc::result_out_of_range) return strtod_of_c(std::string(digits));
  if (parsed.ec != std::errc()) return std::nullopt;
  return value;
}

Result<CsvTable> parse_csv(const std::string& text, const std::string& name,
                           const CsvOptions& options) {
  return Reader(text, name, options).read();
}

Result<CsvTable> read_csv(const std::string& path, const CsvOptions& options) {
  const auto text = read_file(path);
  if (!text) return fail(text.error());
  return parse_csv(*text, path, options);
}

}  // namespace ddprun
