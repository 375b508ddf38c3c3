// Every word of the page, in English and Chinese. {name} is replaced.
const kText = {
  heads: ["Heads", "注意力头"],
  heads_hint: [
    "Each square is one head: rows are queries, columns are keys.",
    "每个方块是一个头：行是查询，列是键。"
  ],
  heads_about: ["≈: the difference of rounded means of tiles.", "≈：图块取整平均值之差。"],
  sort: ["Sort", "排序"],
  order: ["layer, head", "层、头"],
  colour_by: ["Colour by", "着色"],
  none: ["none", "无"],
  colour_selection: ["selection", "所选位置"],
  by_label: ["label", "标签"],
  by_selection: ["weight where selected", "所选位置的权重"],
  change: ["change between the runs", "两次运行间的变化"],
  metrics_word: ["scores", "得分"],
  group_none: ["no score · {n}", "无得分 · {n}"],
  asked_cell: [
    "Each head in the colour of its weight from query {i} to key {j}; half a square: at most.",
    "每个头的颜色是查询 {i} 到键 {j} 的权重；半块：至多。"
  ],
  asked_query: [
    "Each head as what query {n} sees, keys from left to right, with its largest weight.",
    "每个头显示查询 {n} 看到的键（从左到右）及其最大权重。"
  ],
  asked_key: [
    "Each head as who sees key {n}, queries from top to bottom, with all that the key receives.",
    "每个头显示谁看到键 {n}（查询从上到下）及该键所得总和。"
  ],
  overview_label: [
    "All heads: {layers} rows of layers, {heads} columns of heads, in the colour of their scores",
    "所有头：{layers} 行为层，{heads} 列为头，颜色为其得分"
  ],
  over_mean: ["{layer}, mean over heads", "{layer}，各头平均"],
  over_maximum: ["{layer}, largest over heads", "{layer}，各头最大"],
  over_mean_row: ["mean of heads", "各头平均"],
  over_maximum_row: ["max of heads", "各头最大"],
  pin: ["Pin", "固定"],
  pin_off: ["Unpin", "取消固定"],
  unpin: ["Unpin {head}", "取消固定 {head}"],
  goto: ["Go to", "前往"],
  goto_hint: ["go to: 5.3 300 17", "前往：5.3 300 17"],
  goto_is: [
    "layer.head query key, any part of it, or a word of the text; Enter goes to the next one",
    "层.头 查询 键，可只写一部分，或文本中的词；回车前往下一处"
  ],
  goto_no_layer:
      ["There is no layer {n}; the last is {last}.", "没有第 {n} 层；最后一层是 {last}。"],
  goto_no_head: ["There is no head {n}; the last is {last}.", "没有头 {n}；最后一个是 {last}。"],
  goto_no_query:
      ["There is no query {n}; the last is {last}.", "没有查询 {n}；最后一个是 {last}。"],
  goto_no_key: ["There is no key {n}; the last is {last}.", "没有键 {n}；最后一个是 {last}。"],
  goto_no_text: ["The text has no “{text}”.", "文本中没有“{text}”。"],
  change_of: ["{metric}: change", "{metric}的变化"],
  layer: ["Layer", "层"],
  head: ["Head", "头"],
  layer_name: ["layer {n}", "第 {n} 层"],
  head_name: ["{layer}, head {head}", "{layer}，头 {head}"],
  map: ["One head", "单个头"],
  text: ["Text", "文本"],
  explain: ["One cell, step by step", "逐步解释一个格子"],
  table: ["Table", "表格"],
  filters: ["Filters", "筛选"],
  skip: ["Skip to the map", "跳到热图"],
  language: ["Language", "语言"],
  help: ["Keys", "快捷键"],
  close: ["Close", "关闭"],
  link: ["Copy link", "复制链接"],
  link_copied: ["Link copied", "链接已复制"],
  link_by_hand: ["Copy this link", "请手动复制此链接"],
  made_by: [
    "Made by {who}. One file, no request to any network.",
    "由 {who} 生成。单个文件，不发出任何网络请求。"
  ],
  query: ["query", "查询"],
  key: ["key", "键"],
  layer_word_1: ["layer", "层"],
  layer_word: ["layers", "层"],
  head_word_1: ["head", "头"],
  head_word: ["heads", "头"],
  query_word_1: ["query", "个查询"],
  query_word: ["queries", "个查询"],
  key_word_1: ["key", "个键"],
  key_word: ["keys", "个键"],
  all_exact: ["every cell is exact", "每个格子都是精确值"],
  cells_exact:
      ["single cells are exact, tiles are rounded means", "单个格子为精确值，图块为取整的平均值"],
  some_about: [
    "exact cells where the page holds them, elsewhere tiles with mean and largest weight",
    "页面存有精确值处为格子，其余为图块（平均与最大权重）"
  ],
  all_rows: [
    "of every row its {k} largest weights, all others as “at most” and tiles",
    "每行存有 {k} 个最大权重，其余为“至多”与图块"
  ],
  some_rows: [
    "of queries {from} to {to} the {k} largest weights, elsewhere tiles",
    "查询 {from} 至 {to} 存有 {k} 个最大权重，其余为图块"
  ],
  metrics: ["Scores of this head", "此头的得分"],
  weight: ["weight", "权重"],
  difference: ["difference", "差"],
  exact: ["exact", "精确"],
  bound: ["at most", "至多"],
  hidden: ["hidden", "被遮住"],
  unknown: ["not in the page", "不在页面中"],
  filtered: ["left out", "已筛去"],
  exact_is: [
    "computed from the q, k and lse in this page, or stored in it",
    "由页面中的 q、k 和 lse 计算，或直接存于页面"
  ],
  unknown_is: ["this weight is not in the page", "页面不含此权重"],
  rounded_is: ["stored to 1.7e-4 of itself", "存储的相对误差 1.7e-4"],
  stored_by: ["stored with {flag}", "用 {flag} 存储"],
  store_it: ["This stores it:", "存储它的命令："],
  tile_nan: [
    "queries {queries}, keys {keys}: weights that are not numbers",
    "查询 {queries}、键 {keys}：含非数值的权重"
  ],
  tile_difference: [
    "the means over queries {queries} and keys {keys} differ by {mean}",
    "查询 {queries}、键 {keys} 上两个平均值相差 {mean}"
  ],
  tile_single: ["rounded: between {from} and {to}", "取整：在 {from} 与 {to} 之间"],
  tile_over: [
    "largest {mean} over queries {queries}, keys {keys}",
    "查询 {queries}、键 {keys} 的最大值 {mean}"
  ],
  tile_mean: [
    "mean {mean} over queries {queries}, keys {keys}", "查询 {queries}、键 {keys} 的平均值 {mean}"
  ],
  tile_largest: ["; largest between {from} and {to}", "；最大值在 {from} 与 {to} 之间"],
  tile_place: ["queries {queries} → keys {keys}", "查询 {queries} → 键 {keys}"],
  nan: ["not a number", "非数值"],
  hidden_causal: ["hidden: after the query (causal)", "被遮住：在查询之后（因果）"],
  hidden_window: ["hidden: outside the window", "被遮住：在窗口之外"],
  hidden_mask: ["hidden: by the mask", "被遮住：由掩码"],
  hidden_key_length: ["hidden: past the last key", "被遮住：超出键的长度"],
  filtered_is: ["left out by a filter; without it {weight}", "被筛选去掉；原值 {weight}"],
  filtered_plain: ["left out by a filter", "被筛选去掉"],
  renormalised_is: ["renormalised; before {weight}", "已重新归一化；原值 {weight}"],
  point_at: ["Point at a cell, or move with the arrow keys.", "指向一个格子，或用方向键移动。"],
  map_label: [
    "Heatmap of {head}. {queries} queries by {keys} keys. Arrow keys move, plus and minus zoom.",
    "{head} 的热图。{queries} 个查询，{keys} 个键。方向键移动，加减号缩放。"
  ],
  zoom_in: ["Zoom in", "放大"],
  zoom_out: ["Zoom out", "缩小"],
  zoom_fit: ["Show all", "显示全部"],
  bend: ["Scale", "色标"],
  linear: ["linear", "线性"],
  sqrt: ["root", "平方根"],
  log: ["log", "对数"],
  same: ["One scale for all heads", "所有头同用一个色标"],
  norms: ["× value norm", "× 值范数"],
  norms_short: ["weight × norm", "权重 × 范数"],
  scale_values: [
    "weight × norm of the key's value: 0 to the largest in this head",
    "权重 × 该键的值的范数：0 到此头中的最大值"
  ],
  scale_output: [
    "weight × norm of the key's value after W^O: 0 to the largest in this head",
    "权重 × 该键的值经 W^O 后的范数：0 到此头中的最大值"
  ],
  strip_entropy: ["entropy", "熵"],
  strip_mass: ["mass", "总权重"],
  scale_same: ["weight: 0 to 1, the same for all heads", "权重：0 到 1，所有头相同"],
  scale_own: ["weight: the scale ends at what is high in this head", "权重：色标止于此头中的高值"],
  scale_difference: [
    "orange: more weight in {b}; blue: less; to the largest known difference of all heads",
    "橙色：{b} 中权重更大；蓝色：更小；止于所有头中已知的最大差值"
  ],
  scale_difference_own: [
    "orange: more weight in {b}; blue: less; to the largest known difference of this head",
    "橙色：{b} 中权重更大；蓝色：更小；止于此头中已知的最大差值"
  ],
  scale_difference_unknown:
      ["orange: more weight in {b}; blue: less", "橙色：{b} 中权重更大；蓝色：更小"],
  tile: ["tile", "图块"],
  tiles_show: ["Tiles", "图块"],
  mean: ["mean", "平均"],
  maximum: ["largest", "最大"],
  level_merged: [
    "{queries} × {keys} cells in view, several to a pixel",
    "视野内 {queries} × {keys} 个格子，多格合为一像素"
  ],
  level_tiles: [
    "Each tile is {queries} × {keys} cells, in the colour of their {what} weight; zoom in for single cells.",
    "每个图块为 {queries} × {keys} 个格子，颜色为其{what}权重；放大可见单个格子。"
  ],
  level_only_tiles: [
    "Tiles of {queries} × {keys} cells in the colour of their {what} weight; on them, cells that the page holds.",
    "{queries} × {keys} 个格子的图块，颜色为其{what}权重；其上为页面存有的格子。"
  ],
  level_filter: [
    "At this zoom the tiles are shown before top-p and renormalising.",
    "此缩放级别下，图块未应用 top-p 与重新归一化。"
  ],
  legend_hidden: ["hidden", "被遮住"],
  legend_filtered: ["left out", "已筛去"],
  legend_tile:
      ["tile of several cells, its other number in the corner", "多格图块，角上为另一数值"],
  legend_unknown: ["not on the page", "页面未存"],
  legend_nan: ["not a number", "非数值"],
  legend_window: ["exact window", "精确窗口"],
  top_p: ["Top-p", "Top-p"],
  top_p_is: [
    "Per query, the largest weights until they make up this share.",
    "对每个查询，取最大的权重直至达到此份额。"
  ],
  threshold: ["At least", "阈值"],
  threshold_is: ["Weights below this are left out.", "低于此值的权重被去掉。"],
  far: ["Distance at least", "距离至少"],
  far_is: [
    "Keys nearer to the query than this are left out: what is far from the diagonal stays.",
    "比此更靠近查询的键被去掉：只留远离对角线者。"
  ],
  no_first: ["Hide the first token", "隐藏首个词元"],
  no_special: ["Hide special tokens", "隐藏特殊词元"],
  renormalise: ["Renormalise what is left", "对剩余部分重新归一化"],
  pattern: ["Keys matching", "匹配的键"],
  pattern_hint: ["regular expression", "正则表达式"],
  pattern_bad: ["This pattern cannot be read: {what}", "无法解析此表达式：{what}"],
  filters_off: ["Clear filters", "清除筛选"],
  needs_exact: [
    "Top-p and renormalising need exact rows, which this page does not hold for this layer.",
    "Top-p 与重新归一化需要精确的行，而此页未包含该层的精确数据。"
  ],
  direction: ["Direction", "方向"],
  sees: ["what it sees", "它看到什么"],
  seen_by: ["who sees it", "谁看到它"],
  combine: ["Several tokens", "多个词元"],
  sum: ["sum", "求和"],
  chosen_sees: ["Seen by {tokens}", "{tokens} 看到的内容"],
  chosen_seen: ["Who sees {tokens}", "谁看到 {tokens}"],
  chosen_none:
      ["Choose a token. Hold Shift to choose several.", "选择一个词元。按住 Shift 可多选。"],
  chosen_many: ["{first} and {n} more", "{first} 等 {n} 个"],
  facts_query:
      ["entropy {entropy} nats, largest weight {maximum}", "熵 {entropy} nat，最大权重 {maximum}"],
  facts_entropy: ["entropy {entropy} nats", "熵 {entropy} nat"],
  facts_key: ["receives {mass} in all, over all queries", "从所有查询共得到 {mass}"],
  strongest_known: [
    "Of the tokens underlined only tiles are known; they are not in this list.",
    "带下划线的词元只有图块数据，未列于此。"
  ],
  strongest: ["Strongest cells", "最强的格子"],
  strongest_others:
      ["Of the stored cells. Any other is {most}.", "仅限已存储的格子。其他任何格子 {most}。"],
  strongest_stored: ["Of the stored cells.", "仅限已存储的格子。"],
  text_queries: ["Queries", "查询"],
  text_keys: ["Keys", "键"],
  text_page: ["{from} to {to} of {all}", "第 {from} 至 {to} 个，共 {all} 个"],
  earlier: ["Earlier", "向前"],
  later: ["Later", "向后"],
  text_too_many: [
    "Too many tokens are chosen to add them up here; choose fewer.",
    "选择的词元过多，无法在此合计；请减少。"
  ],
  text_strip: ["All tokens; click to go there", "全部词元；点击跳转"],
  explain_none: [
    "Choose a cell on the map to see where its number comes from.",
    "在热图上选择一个格子，查看它的数值从何而来。"
  ],
  explain_over: [
    "Choose a single head: a mean or largest over heads has no steps of its own.",
    "请选择单个头：各头的平均或最大没有自己的步骤。"
  ],
  explain_not: [
    "q and k of this layer are not in the page: {why} So this weight cannot be recomputed here.",
    "此层的 q 和 k 不在页面中：{why} 因此无法在此重新计算该权重。"
  ],
  explain_why: ["they were left out to keep the page small.", "为减小页面而省去。"],
  explain_no_v: [
    "v of this layer is not in the page, so the last step is left out.",
    "此层的 v 不在页面中，因此省去最后一步。"
  ],
  explain_run: ["Run", "运行"],
  step_scores: ["1 · Scores", "1 · 分数"],
  step_mask: ["2 · Mask", "2 · 掩码"],
  step_softmax: ["3 · Softmax", "3 · Softmax"],
  step_values: ["4 · Values", "4 · 值"],
  products: ["products q × k", "乘积 q × k"],
  bars_are: ["orange above 0, blue below", "橙色大于 0，蓝色小于 0"],
  all_products: ["All {n} products", "全部 {n} 个乘积"],
  dot: ["sum of the products", "乘积之和"],
  times_scale: ["× scale {scale}", "× 缩放 {scale}"],
  softcap: ["softcap {cap} · tanh(s / {cap})", "软上限 {cap} · tanh(s / {cap})"],
  bias: ["+ bias", "+ 偏置"],
  alibi: ["+ ALiBi, −slope × distance", "+ ALiBi，−斜率 × 距离"],
  nothing_added: ["nothing is added, nothing hides this key", "没有添加项，此键未被遮住"],
  score: ["score s", "分数 s"],
  row_maximum: ["largest score of the row, m", "该行最大分数 m"],
  exp: ["exp(s − m)", "exp(s − m)"],
  row_sum: ["÷ sum of the row", "÷ 行之和"],
  row_sum_sink: ["÷ sum of the row, sink included", "÷ 行之和（含 sink）"],
  weight_is: ["weight p = exp(s − lse)", "权重 p = exp(s − lse)"],
  check: [
    "the row's own sum and the stored lse differ by {difference}",
    "本页计算的行之和与存储的 lse 相差 {difference}"
  ],
  hidden_zero: [
    "hidden, so its weight is exactly 0 and it never enters the sum",
    "被遮住，因此权重恰为 0，不进入求和"
  ],
  value_times: ["p × v of this key", "p × 该键的 v"],
  value_norm: ["length of p × v, of the whole output row", "p × v 的长度，整行输出的长度"],
  table_show: ["Show the table", "显示表格"],
  table_hide: ["Hide the table", "隐藏表格"],
  table_caption: [
    "Weights of {head}: a row for each query, a column for each key",
    "{head} 的权重：每行一个查询，每列一个键"
  ],
  table_too_long: [
    "The table is offered for up to 64 tokens; this layer has {n}. Export CSV holds what is in view.",
    "表格最多支持 64 个词元；此层有 {n} 个。可导出视野内的 CSV。"
  ],
  compare: ["Runs", "运行"],
  largest_difference: ["Largest difference {value} at {place}", "最大差值 {value}，位于 {place}"],
  of_means: ["{value} of the means", "平均值之差 {value}"],
  largest_here: [
    "In this head {value} at query {query} → key {key}",
    "此头中最大 {value}，查询 {query} → 键 {key}"
  ],
  largest_tile_here: ["In this head {value} at {place}", "此头中最大 {value}，{place}"],
  searching: ["searching …", "查找中……"],
  no_difference: ["The two runs are equal in every cell.", "两次运行逐格相等。"],
  no_difference_about: ["The tiles of the two runs are equal.", "两次运行的图块相等。"],
  no_difference_here: ["In this head the two runs are equal.", "此头中两次运行相等。"],
  go_there: ["Go there", "前往"],
  export: ["Export", "导出"],
  export_too_large: [
    "{n} cells are in view; CSV holds at most {most}. Zoom in, or take the tiles.",
    "视野内有 {n} 个格子；CSV 最多 {most} 个。请放大。"
  ],
  notes: ["Notes", "说明"],
  note_nan: [
    "This head has weights that are not numbers; they are drawn in magenta.",
    "此头含有非数值的权重，以洋红色绘出。"
  ],
  error_title: ["This cannot be shown", "无法显示"],
  error_no_data: [
    "The page holds no data. It was probably cut off when it was saved.",
    "页面不含数据，可能在保存时被截断。"
  ],
  error_json: [
    "The page's data is broken ({what}). Write the page again.",
    "页面数据已损坏（{what}）。请重新生成。"
  ],
  error_format: [
    "The data is of the format “{found}”; this page reads attend.view/2.",
    "数据格式为“{found}”；此页只能读取 attend.view/2。"
  ],
  error_no_runs: [
    "The data holds no run: there is nothing to show.", "数据中没有任何运行：没有可显示的内容。"
  ],
  error_blob_missing: [
    "Part {blob} of the data is missing; the page was probably cut off.",
    "数据第 {blob} 部分缺失，页面可能被截断。"
  ],
  error_blob_broken: [
    "Part {blob} of the data cannot be unpacked; the page is damaged.",
    "数据第 {blob} 部分无法解压，页面已损坏。"
  ],
  error_blob_size: [
    "Part {blob} of the data has {found} bytes instead of {expected}.",
    "数据第 {blob} 部分为 {found} 字节，应为 {expected} 字节。"
  ],
  error_blob_type:
      ["A part of the data has the unknown type “{found}”.", "数据中有未知类型“{found}”。"],
  error_old_browser: [
    "This browser cannot unpack the data (no DecompressionStream). Any browser of 2023 or later can.",
    "此浏览器无法解压数据（没有 DecompressionStream）。2023 年及以后的浏览器均可。"
  ],
  error_tiles: ["The overview of {layer} does not fit its shape.", "{layer} 的概览与其形状不符。"],
  error_rows:
      ["The stored rows of {layer} do not fit its shape.", "{layer} 存储的行与其形状不符。"],
  error_shape: [
    "In {layer}, {name} has {found} numbers instead of {expected}.",
    "{layer} 中 {name} 有 {found} 个数，应为 {expected} 个。"
  ],
  error_field: [
    "In {layer}, {name} is {found}; a whole number is needed.",
    "{layer} 中 {name} 为 {found}；应为整数。"
  ],
  error_not_alike: [
    "The runs cannot be subtracted: {name} is {a} in one and {b} in the other.",
    "两次运行无法相减：{name} 分别为 {a} 和 {b}。"
  ],
  error_unexpected: ["Something went wrong: {what}", "出现问题：{what}"],
  empty_layer: ["This run has no such layer.", "此运行没有该层。"],
  no_layers:
      ["This run has no layers: there is nothing to show.", "此运行没有任何层：没有可显示的内容。"],
  empty_sequence: [
    "This layer is empty: {heads} heads, {queries} queries, {keys} keys. There is no weight to show.",
    "此层为空：{heads} 个头，{queries} 个查询，{keys} 个键。没有可显示的权重。"
  ],
  few_tokens: [
    "There are {found} tokens for {needed} positions; the others are shown by number.",
    "{needed} 个位置只有 {found} 个词元；其余以编号显示。"
  ],
  tiles_about: ["the difference of rounded means of tiles", "图块取整平均值之差"],
  no_tiles: ["no overview", "无概览"],
  metric_entropy: ["Entropy", "熵"],
  metric_entropy_is: [
    "mean entropy of a row, in nats: 0 is one key, log n is all n alike",
    "行的平均熵（nat）：0 为单个键，log n 为 n 个键均等"
  ],
  metric_evenness: ["Evenness", "均匀度"],
  metric_evenness_is: ["entropy divided by its largest possible value", "熵除以其可能的最大值"],
  metric_maximum: ["Maximum", "最大权重"],
  metric_maximum_is: ["mean of the largest weight of a row", "每行最大权重的平均"],
  metric_distance: ["Distance", "距离"],
  metric_distance_is:
      ["mean distance from the query to the keys, by weight", "按权重计，查询到键的平均距离"],
  metric_previous: ["Previous", "前一词元"],
  metric_previous_is: ["mean weight on the key just before the query", "查询前一个键上的平均权重"],
  metric_first: ["First", "首个词元"],
  metric_first_is: ["mean weight on key 0", "键 0 上的平均权重"],
  metric_diagonal: ["Diagonal", "对角线"],
  metric_diagonal_is: ["mean weight on the query's own position", "查询自身位置上的平均权重"],
  metric_local: ["Local", "局部"],
  metric_local_is: ["mean weight on keys near the query", "查询附近的键上的平均权重"],
  metric_duplicate: ["Duplicate", "重复词元"],
  metric_duplicate_is:
      ["mean weight on earlier keys with the query's token", "与查询相同的较早词元上的平均权重"],
  metric_induction: ["Induction", "归纳"],
  metric_induction_is: [
    "mean weight on keys that follow an earlier copy of the query's token",
    "查询词元较早副本之后的键上的平均权重"
  ],
  metric_contribution: ["Contribution", "贡献"],
  metric_contribution_is:
      ["mean length of what the head adds to the output", "该头加到输出上的向量的平均长度"],
  metric_difference: ["Difference", "差异"],
  metric_difference_is: ["largest difference between the two runs", "两次运行的最大差值"],
  label_previous_token: ["previous token", "前一词元"],
  label_previous_token_is:
      ["mean weight on the key just before the query", "查询前一个键上的平均权重"],
  label_first_token: ["first token", "首个词元"],
  label_first_token_is: [
    "mean weight on key 0, the largest of nearly every row",
    "键 0 上的平均权重，几乎每行都以它为最大"
  ],
  label_selective: ["selective", "选择性"],
  label_selective_is: [
    "mean weight on key 0, where the head rests; in some rows it turns to another key",
    "键 0 上的平均权重：平时停在这里，某些行转向别的键"
  ],
  label_current_token: ["current token", "当前词元"],
  label_current_token_is: ["mean weight on the query's own position", "查询自身位置上的平均权重"],
  label_induction: ["induction", "归纳"],
  label_induction_is: [
    "mean weight on keys that follow an earlier copy of the query's token",
    "查询词元较早副本之后的键上的平均权重"
  ],
  label_duplicate_token: ["duplicate token", "重复词元"],
  label_duplicate_token_is:
      ["mean weight on earlier keys with the query's token", "与查询相同的较早词元上的平均权重"],
  label_not_finite: ["not finite", "非有限"],
  label_not_finite_is: ["a query of this head sees NaN or infinity", "此头有查询看到 NaN 或无穷"],
  label_local: ["local", "局部"],
  label_local_is: ["mean weight on keys near the query", "查询附近的键上的平均权重"],
  label_uniform: ["uniform", "均匀"],
  label_uniform_is: ["entropy divided by its largest possible value", "熵除以其可能的最大值"],
  label_mixed: ["mixed", "混合"],
  label_mixed_is: [
    "mean of the largest weight of a row; no habit stands out", "每行最大权重的平均；没有明显规律"
  ],
  label_none: ["sees nothing", "什么也看不到"],
  label_none_is: ["no query of this head sees a key", "此头没有查询看到任何键"],
  key_heads: ["next, previous head", "下一个、上一个头"],
  key_layers: ["next, previous layer", "下一层、上一层"],
  key_views: ["go to heads, map, text, explanation", "前往头、热图、文本、解释"],
  key_arrows: [
    "move the cell (map), the token (text), the head (heads)", "移动格子（热图）、词元（文本）、头"
  ],
  key_pan: ["move the view (map)", "平移视野（热图）"],
  key_ends: ["first, last key; a page up, down (map)", "首个、最后一个键；上下翻页（热图）"],
  key_zoom: ["zoom in, out, show all", "放大、缩小、显示全部"],
  key_choose: [
    "choose the query of this cell, or this token; with Shift add it",
    "选择该格的查询或该词元；按 Shift 添加"
  ],
  key_reverse: ["turn the direction of the text", "切换文本方向"],
  key_combine: ["sum or mean", "求和或平均"],
  key_filters:
      ["hide first token, special tokens; renormalise", "隐藏首个词元、特殊词元；重新归一化"],
  key_pattern: ["write a pattern for keys", "输入键的表达式"],
  key_goto: ["go to a layer, head, query, key or word", "前往某层、头、查询、键或词"],
  key_pin: ["pin the head, or take its pin away", "固定该头，或取消固定"],
  key_norms: ["weights times the norms of the values", "权重乘以值的范数"],
  key_p: ["top-p down, up", "减小、增大 top-p"],
  key_least: ["threshold down, up", "减小、增大阈值"],
  key_bend: ["colour scale, tiles, sorting", "色标、图块、排序"],
  key_compare: ["first run, second run, difference", "第一次运行、第二次运行、差"],
  key_export: ["save SVG, PNG, CSV", "保存 SVG、PNG、CSV"],
  key_link: ["copy the link", "复制链接"],
  key_table: ["show the table", "显示表格"],
  key_language: ["English, 中文", "English、中文"],
  key_help: ["these keys", "显示快捷键"],
  key_escape: ["close; clear the cell, then the tokens", "关闭；先取消格子，再取消词元"],
};

let column = 0;

export function setLanguage(language) {
  column = language === "zh" ? 1 : 0;
  document.documentElement.lang = language === "zh" ? "zh" : "en";
}

// The words of a key; a key that does not exist is returned as it is.
export function say(key, values = {}) {
  const words = kText[key]?.[column];
  if (words === undefined) return key;
  return words.replace(/\{(\w+)\}/g, (_, name) => String(values[name] ?? ""));
}

// Words in which some {names} become elements: a list of strings and elements.
export function sayWith(key, values) {
  const words = kText[key]?.[column] ?? key;
  return words.split(/\{(\w+)\}/).map((part, n) => (n % 2 ? values[part] ?? "" : part));
}
