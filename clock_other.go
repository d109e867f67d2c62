//go:build !linux

package lock

import "time"

func systemBootTime() time.Duration { return wallTime() }
