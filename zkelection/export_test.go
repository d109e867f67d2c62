package zkelection

// SetLastNumber makes queues start anew after so many nodes.
func SetLastNumber(n int32) (restore func()) {
	old := lastNumber
	lastNumber = n
	return func() { lastNumber = old }
}
