package autopsy

// For tests of what is not exported.
var ParsePySpy = parsePySpy

// JudgeOf is Judge of a job of world ranks.
func (r *Report) JudgeOf(world int) {
	r.world = world
	r.Judge()
}
