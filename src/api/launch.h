// Putting work into a queue of a device: what can be wrong with the queue, and what the device says
// at once, in words.
#pragma once

#include "core/queue.h"

#include <string_view>

namespace attend {

// The queue that work on this device goes into. Throws if there is none, or one of another device.
// The function is the one that was called, for messages.
Queue& queue_for(std::string_view function, Device device, Queue* queue);

// Throws what a launch reported.
void check_launched(std::string_view function, Device device, const Status& status);

// start(queue) launches.
template <class Start>
void launch(std::string_view function, Device device, Queue* queue, Start start) {
  check_launched(function, device, start(queue_for(function, device, queue)));
}

}  // namespace attend
