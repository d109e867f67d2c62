package lock

import "time"

// SetBootTime replaces the clock that goes on in suspend.
func SetBootTime(boot func() time.Duration) { bootTime = boot }
