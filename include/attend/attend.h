// All of attend.
#pragma once

#include <attend/attention.h>
#include <attend/context.h>
#include <attend/distributed.h>
#include <attend/dtype.h>
#include <attend/error.h>
#include <attend/inspect.h>
#include <attend/io.h>
#include <attend/layer.h>
#include <attend/options.h>
#include <attend/plan.h>
#include <attend/tensor.h>
#include <attend/train.h>
#include <attend/version.h>
