"""Mutants of src/plan, and of the features that it plans by."""
from . import mutant

PLAN = "src/plan/plan.cpp"
FEATURES = "src/core/features.cpp"
CONTEXT = "src/api/context.cpp"

PLANNED = ("planner", "plan", "launch", "context")

MUTANTS = (
    mutant("rows_only_if_forced_are_chosen", "a row that is there to be forced is chosen",
           (PLAN, "kernel->only_if_forced || !is_here(kernel)", "!is_here(kernel)"), tests=PLANNED),
    mutant("features_not_asked_for", "a row is given what it does not take",
           (PLAN, "features - kernel.takes", "Features{}"), tests=PLANNED),
    mutant("forced_row_not_asked", "a forced row runs though it declines",
           (PLAN, "features, machine); !reason.empty())", "!reason.empty()", "false"), tests=PLANNED),
    mutant("reason_not_kept", "who declined, and why, is forgotten",
           (PLAN, "declined.emplace_back(kernel->name, std::move(reason));", ""), tests=PLANNED),
    mutant("last_row_that_takes_it", "a row that declines is skipped with the one behind it",
           (PLAN, "if (reason.empty()) return *kernel;", "reason.empty()",
            "reason.empty() && (!declined.empty() || kernel == table.back())"), tests=PLANNED),
    mutant("more_strands_than_tasks", "threads are planned that find nothing to do",
           (PLAN, "static_cast<double>(most), worth", "static_cast<double>(most)",
            "static_cast<double>(threads)"), tests=PLANNED),
    mutant("workspace_of_one_strand", "there is memory for one thread alone",
           (PLAN, "workspace.per_strand, static_cast<std::size_t>(strands), &bytes",
            "static_cast<std::size_t>(strands)", "std::size_t{1}"), tests=PLANNED),
    mutant("shared_workspace_forgotten", "the workspace has no room for what tasks share",
           (PLAN, "__builtin_add_overflow(bytes, workspace.shared, &bytes)", "false"), tests=PLANNED),
    mutant("tiles_without_threads", "tasks are cut as if for one thread",
           (PLAN, "decision.tiles.threads = threads;", ""),
           equivalent="how a problem is cut into tasks changes no bit, only how evenly threads are busy"),
    mutant("device_row_for_host_memory", "a row that launches is given host memory",
           (PLAN, "kernel.launch != nullptr && problem.device == Device{}", "false"), tests=PLANNED),
    mutant("device_without_a_reason", "memory of a device is refused without naming the device",
           (PLAN, "others.has(Feature::device_memory)", "false"), tests=PLANNED),
    mutant("forced_not_shown", "a plan does not say that its kernel was forced",
           (PLAN, "d.forced ? \" (forced)\" : \"\"", "\"\""), tests=PLANNED),
    mutant("newer_options_not_shown", "a plan names only the options that have words of their own",
           (PLAN, "s.add(!newer.empty(), names_of(newer));", ""), tests=PLANNED),
    mutant("softcap_is_no_feature", "rows are not asked whether they take a softcap",
           (FEATURES, "f.add(Feature::softcap, p.softcap != 0);", ""), tests=PLANNED),
    mutant("short_bias_is_no_feature", "rows are not asked whether they take a short bias",
           (FEATURES, "(p.bias && p.bias_keys < p.k_length)", "false"), tests=PLANNED),
    mutant("plans_without_end", "a context keeps every plan it ever made",
           (CONTEXT, "if (made_so_far.size() >= kMostPlans) made_so_far.clear();", ""), tests=PLANNED),
)
