// Requests to the server. An answer that is not well becomes a RequestFailed with the parts of the error.

import type { ErrorParts } from './types'

export const API = '/api/v1'

export class RequestFailed extends Error {
  constructor(
    readonly status: number,
    readonly parts: ErrorParts,
  ) {
    super(parts.what)
  }
}

/** A GET's text, so that a caller can compare it with what it has before it parses it. */
export async function readText(path: string, signal?: AbortSignal): Promise<string> {
  const answer = await send(path, signal ? { signal } : {})
  return answer.text()
}

export async function readJson<T>(path: string, signal?: AbortSignal): Promise<T> {
  return JSON.parse(await readText(path, signal)) as T
}

/** A request that changes something. */
export async function post<T>(path: string, body?: unknown): Promise<T> {
  return (await create<T>(path, body)).value
}

/** The same, and whether the server made something new: else the answer is what was there already. */
export async function create<T>(path: string, body?: unknown): Promise<{ value: T; isNew: boolean }> {
  const answer = await send(path, {
    method: 'POST',
    // the header tells the server that the request does not come from another site
    headers: { 'Content-Type': 'application/json', 'X-Requested-With': 'ematix-flow' },
    body: JSON.stringify(body ?? {}),
  })
  const text = await answer.text()
  return { value: (text ? JSON.parse(text) : null) as T, isNew: answer.status === 201 }
}

async function send(path: string, options: RequestInit): Promise<Response> {
  let answer: Response
  try {
    answer = await fetch(API + path, { credentials: 'same-origin', ...options })
  } catch (problem) {
    if (problem instanceof DOMException && problem.name === 'AbortError') throw problem
    throw new RequestFailed(0, {
      type: 'CannotConnect',
      what: 'flow web does not answer',
      where: location.origin,
      state: 'this page shows what it last received; nothing was changed',
      next: 'check that flow web still runs; the page tries again every few seconds',
    })
  }
  if (!answer.ok) throw new RequestFailed(answer.status, await errorParts(answer))
  return answer
}

async function errorParts(answer: Response): Promise<ErrorParts> {
  const text = await answer.text()
  try {
    const found = (JSON.parse(text) as { error?: ErrorParts }).error
    if (found?.what) return found
  } catch {
    // not JSON: a proxy answered, and its text says no more than the status
  }
  return {
    type: 'UnexpectedAnswer',
    what: `the server answered ${answer.status} ${answer.statusText}`.trim(),
    where: new URL(answer.url || location.href).pathname,
    state: null,
    next: 'read the log of flow web',
  }
}

/** The error of anything that was thrown. */
export function partsOf(problem: unknown): ErrorParts {
  if (problem instanceof RequestFailed) return problem.parts
  const what = problem instanceof Error ? problem.message : String(problem)
  return { type: 'UnexpectedError', what: `the page met an unexpected error: ${what}` }
}

/** A path with its query; empty values are left out. */
export function withQuery(
  path: string,
  values: Record<string, string | number | boolean | null | undefined>,
): string {
  const query = new URLSearchParams()
  for (const [name, value] of Object.entries(values)) {
    if (value !== null && value !== undefined && value !== '' && value !== false)
      query.set(name, String(value))
  }
  const text = query.toString()
  return text ? `${path}?${text}` : path
}
