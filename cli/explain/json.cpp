#include "json.h"

#include <cmath>

namespace attend::cli {
namespace {

const char* name_of(Rule rule) {
  switch (rule) {
    case Rule::given: return "given";
    case Rule::product: return "product";
    case Rule::dot: return "dot";
    case Rule::scaled: return "scaled";
    case Rule::softcapped: return "softcapped";
    case Rule::masked: return "masked";
    case Rule::lse: return "lse";
    case Rule::softmax: return "softmax";
    case Rule::rows: return "rows";
    case Rule::joined: return "joined";
    case Rule::sum: return "sum";
  }
  return "";
}

// JSON has no infinities: they are words there.
Json cell_json(double value) {
  if (std::isfinite(value)) return value;
  return number_text(value);
}

Json matrix_json(const Matrix& m) {
  Json object = {{"name", m.name},
                 {"shape", Json::array({m.rows, m.columns})},
                 {"first", Json::array({m.first_row, m.first_column})},
                 {"rule", name_of(m.origin.rule)},
                 {"from", m.origin.from},
                 {"down", m.down == Matrix::Axis::tokens},
                 {"across", m.across == Matrix::Axis::tokens},
                 {"weights", m.weights},
                 {"only_shades", m.only_shades},
                 {"values", Json::array()}};
  for (const std::vector<double>& row : m.cells) {
    Json& values = object["values"].push_back(Json::array());
    for (const double value : row) values.push_back(cell_json(value));
  }
  return object;
}

// `say` turns a Phrase into what stands for it.
template <class Say>
Json step_json(const Step& step, Say&& say) {
  Json object = {{"id", step.id},           {"title", say(step.title)},  {"formula", step.formula},
                 {"shapes", step.shapes},   {"matrices", Json::array()}, {"remarks", Json::array()},
                 {"claims", Json::array()}, {"drawing", Json::array()}};
  for (const Phrase& line : step.drawing) object["drawing"].push_back(say(line));
  for (const Matrix& matrix : step.matrices) object["matrices"].push_back(matrix_json(matrix));
  for (const Phrase& remark : step.remarks) object["remarks"].push_back(say(remark));
  for (const Claim& claim : step.claims)
    object["claims"].push_back(
        {{"said", say(claim.said)}, {"true", say(claim.truth)}, {"why", say(claim.why)}});
  if (!step.table.header.empty()) {
    Json& header = object["table"]["header"] = Json::array();
    for (const Phrase& name : step.table.header) header.push_back(say(name));
    Json& rows = object["table"]["rows"] = Json::array();
    for (const auto& row : step.table.rows) {
      Json& cells = rows.push_back(Json::array());
      for (const Phrase& cell : row) cells.push_back(say(cell));
    }
  }
  return object;
}

template <class Say>
Json whole_json(const Explanation& e, Say&& say) {
  Json object = json_object("attend.explain/1");
  object["name"] = e.name;
  object["title"] = say(e.title);
  object["opening"] = Json::array();
  for (const Phrase& phrase : e.opening) object["opening"].push_back(say(phrase));
  object["tokens"] = e.tokens;
  object["key_tokens"] = e.key_tokens.empty() ? e.tokens : e.key_tokens;
  object["steps"] = Json::array();
  for (const Step& step : e.steps) object["steps"].push_back(step_json(step, say));
  return object;
}

}  // namespace

Json json_of(const Explanation& explanation, Language language) {
  return whole_json(explanation, [&](const Phrase& phrase) { return phrase.in(language); });
}

Json page_data(const Explanation& explanation, Language language) {
  Json data = whole_json(explanation, [](const Phrase& phrase) {
    return Json{{"en", phrase.english}, {"zh", phrase.chinese}};
  });
  data["language"] = language == Language::english ? "en" : "zh";
  std::size_t s = 0;
  for (const Step& step : explanation.steps) {
    std::size_t n = 0;
    for (const Matrix& matrix : step.matrices) {
      Json& how = data["steps"][s]["matrices"][n++]["how"] = Json::array();
      for (std::size_t r = 0; r < matrix.cells.size(); ++r) {
        Json& row = how.push_back(Json::array());
        for (std::size_t c = 0; c < matrix.cells[r].size(); ++c) {
          const Derivation cell = derivation_of(explanation, matrix, static_cast<std::int64_t>(r),
                                                static_cast<std::int64_t>(c));
          Json from = Json::array();
          for (const Cell& one : cell.from)
            from.push_back(Json::array({one.matrix, one.row, one.column}));
          row.push_back(Json::array({cell.text, from}));
        }
      }
    }
    ++s;
  }
  return data;
}

}  // namespace attend::cli
