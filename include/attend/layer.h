// All layers. docs/layers has a page on each.
#pragma once

#include <attend/block.h>
#include <attend/embedding.h>
#include <attend/feed_forward.h>
#include <attend/kv_cache.h>
#include <attend/linear.h>
#include <attend/model.h>
#include <attend/multi_head_attention.h>
#include <attend/norm.h>
#include <attend/trace.h>
