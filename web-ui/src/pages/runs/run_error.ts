// The parts of a run's error. A record keeps its text; the parts are lines of it, or stand with a target.

import type { ErrorParts, Run } from '../../api/types'

const PART = /^ {2}(where|state|next): +(.*)$/

export function errorOf(run: Run & { error?: ErrorParts | null }): ErrorParts | null {
  if (run.error?.what) return run.error
  if (!run.error_message) return null
  const found = split(run.error_message)
  const ofTarget = run.metrics?.targets?.find(target => target.error)?.error
  return {
    type: run.error_type ?? ofTarget?.type ?? 'Error',
    what: found.what,
    where: run.error_where ?? found.where ?? ofTarget?.where ?? null,
    state: found.state ?? ofTarget?.state ?? null,
    next: found.next ?? ofTarget?.next ?? null,
  }
}

/** The text that an error's `str` gives: what happened, then indented parts. */
export function split(text: string): { what: string; where?: string; state?: string; next?: string } {
  const what: string[] = []
  const parts: Record<string, string> = {}
  let part: string | null = null
  for (const line of text.split('\n')) {
    const found = PART.exec(line)
    if (found) {
      part = found[1] as string
      parts[part] = found[2] as string
    } else if (part) parts[part] += `\n${line}`
    else what.push(line)
  }
  return { what: what.join('\n'), ...parts }
}
