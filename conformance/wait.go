package conformance

var waitChecks []Check
