#include "flags.h"

#include <CLI/App.hpp>

#include <utility>

namespace attend::cli {
namespace {

// What an option takes, for people.
std::string value_of(const CLI::Option& option) {
  const std::string& text = option.get_option_text();
  return text.empty() || text == " " ? option.get_type_name() : text;
}

// CLI11 keeps them only in the name of the type: "TEXT:{bash,zsh}".
std::vector<std::string> words_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t begin = type.find('{'), end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return {};
  return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
}

FlagInfo info_of(const CLI::Option& option) {
  const bool positional = option.get_positional();
  return {.name = option.get_name(),
          .all_names = option.get_name(positional, !positional),
          .description = option.get_description(),
          .group = option.get_group(),
          .value = value_of(option),
          .words = words_of(option),
          .positional = positional,
          .takes_value = option.nonpositional() && option.get_items_expected_max() > 0,
          .repeats = option.get_expected_max() > 1,
          .required = option.get_required(),
          .given = option.results()};
}

// Puts the number that `read` finds in a word into its place, or says that there is none.
template <class Value, class Read>
std::function<bool(const std::string&)> into(Value& value, Read read) {
  return [&value, read](const std::string& word) {
    const auto number = read(word);
    if (number) value = *number;
    return number.has_value();
  };
}

auto whole(Whole allowed) {
  return [allowed](const std::string& word) { return whole_in(word, allowed); };
}
auto real(Real allowed) {
  return [allowed](const std::string& word) { return real_in(word, allowed); };
}

}  // namespace

// ---- one flag ----------------------------------------------------------------------------------

Flag Flag::value(const std::string& name) const {
  option_->type_name(name);
  return *this;
}

Flag Flag::text(const std::string& all) const {
  option_->option_text(all);
  return *this;
}

Flag Flag::one_of(const std::vector<std::string>& words) const {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : "|") + word;
  option_->check(CLI::IsMember(words));
  return text(all);
}

Flag Flag::suggest(const std::vector<std::string>& words) const {
  option_->check(CLI::Validator([](std::string&) { return std::string(); },
                                "{" + CLI::detail::join(words, ",") + "}"));
  return *this;
}

Flag Flag::check(std::function<std::string(const std::string&)> mistake) const {
  option_->check(std::move(mistake));
  return *this;
}

Flag Flag::times(int least, int most) const {
  option_->expected(least, most);
  return *this;
}

Flag Flag::repeatable() const {
  option_->expected(1)->take_all();
  return *this;
}

Flag Flag::required() const {
  option_->required();
  return *this;
}

Flag Flag::needs(const Flag& other) const {
  option_->needs(other.option_);
  return *this;
}

Flag Flag::show_default() const {
  option_->capture_default_str();
  return *this;
}

// ---- those of a command ------------------------------------------------------------------------

Flags Flags::group(const std::string& heading) const {
  Flags flags = *this;
  flags.group_ = heading;
  return flags;
}

Flag Flags::grouped(CLI::Option& option) const {
  option.group(group_);
  return Flag(option);
}

Flag Flags::add_switch(const std::string& name, bool& value, const std::string& description) {
  return grouped(*app_->add_flag_callback(
      name, [&value] { value = true; }, description));
}

Flag Flags::add_text(const std::string& name, std::string& value, const std::string& description) {
  const CLI::callback_t take = [&value](const CLI::results_t& words) {
    value = words[0];
    return true;
  };
  return grouped(*app_->add_option(name, take, description, false, [&value] { return value; }))
      .value("TEXT");
}

Flag Flags::add_file(const std::string& name, std::string& value, const std::string& description) {
  return add_text(name, value, description).value("FILE");
}

Flag Flags::add_texts(const std::string& name, std::vector<std::string>& value,
                      const std::string& description) {
  const CLI::callback_t take = [&value](const CLI::results_t& words) {
    value = words;
    return true;
  };
  CLI::Option* option = app_->add_option(name, take, description, false);
  option->expected(CLI::detail::expected_max_vector_size);
  return grouped(*option).value("TEXT");
}

Flag Flags::add_word(const std::string& name, std::string& value, const std::string& description,
                     const std::vector<std::string>& words) {
  return add_text(name, value, description).one_of(words);
}

// `take` is one of into().
Flag Flags::add_number(const std::string& name, const std::string& description,
                       std::function<bool(const std::string&)> take, const std::string& wanted) {
  const CLI::callback_t nothing_left = [](const CLI::results_t&) { return true; };
  return grouped(*app_->add_option(name, nothing_left, description, false))
      .check([take = std::move(take), wanted](const std::string& word) {
        return take(word) ? std::string() : "'" + word + "' is not " + wanted;
      });
}

Flag Flags::add_whole(const std::string& name, std::int64_t& value, Whole allowed,
                      const std::string& description) {
  return add_number(name, description, into(value, whole(allowed)), wanted(allowed)).value("N");
}

Flag Flags::add_whole(const std::string& name, std::optional<std::int64_t>& value, Whole allowed,
                      const std::string& description) {
  return add_number(name, description, into(value, whole(allowed)), wanted(allowed)).value("N");
}

Flag Flags::add_real(const std::string& name, double& value, Real allowed,
                     const std::string& description) {
  return add_number(name, description, into(value, real(allowed)), wanted(allowed)).value("X");
}

Flag Flags::add_real(const std::string& name, std::optional<double>& value, Real allowed,
                     const std::string& description) {
  return add_number(name, description, into(value, real(allowed)), wanted(allowed)).value("X");
}

Flag Flags::add_seed(const std::string& name, std::uint64_t& value,
                     const std::string& description) {
  return add_number(name, description, into(value, seed_in),
                    "a whole number from 0 to 18446744073709551615 (2^64 - 1)")
      .value("N");
}

Flag Flags::add_help() {
  return grouped(*app_->set_help_flag("-h,--help", "Prints this help and exits"));
}

void Flags::refuse_empty_values() {
  for (CLI::Option* option : app_->get_options()) {
    const FlagInfo flag = info_of(*option);
    if (!flag.takes_value && !flag.positional) continue;
    const std::string message = "the value is empty; it takes " + flag.value;
    option->transform(CLI::Validator(
        [message](std::string& word) { return word.empty() ? message : std::string(); }, ""));
  }
}

bool Flags::has(const std::string& name) const {
  return app_->get_option_no_throw(name) != nullptr;
}

bool Flags::given(const std::string& name) const { return app_->count(name) > 0; }

std::vector<FlagInfo> Flags::all() const {
  std::vector<FlagInfo> list;
  for (const CLI::Option* option : std::as_const(*app_).get_options())
    list.push_back(info_of(*option));
  return list;
}

std::optional<std::string> Flags::given_of(const std::string& group) const {
  for (const CLI::Option* option : std::as_const(*app_).get_options())
    if (option->get_group() == group && option->count() > 0) return option->get_name();
  return std::nullopt;
}

}  // namespace attend::cli
