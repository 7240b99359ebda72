// The icons, drawn here: nothing is loaded from elsewhere. They are decoration; text says what they mean.

import type { JSX } from 'preact'

const SHAPES = {
  pipelines: <path d="M2 4h12M2 8h8M2 12h10" />,
  graph: (
    <>
      <circle cx="3.5" cy="8" r="1.8" />
      <circle cx="12.5" cy="3.5" r="1.8" />
      <circle cx="12.5" cy="12.5" r="1.8" />
      <path d="M5.2 7.2 10.9 4.3M5.2 8.8l5.7 2.9" />
    </>
  ),
  runs: <path d="M4.5 3v10l8-5z" />,
  streams: <path d="M1.5 5c2.2-2.7 4.3-2.7 6.5 0s4.3 2.7 6.5 0M1.5 11c2.2-2.7 4.3-2.7 6.5 0s4.3 2.7 6.5 0" />,
  letters: (
    <>
      <rect x="1.5" y="3.5" width="13" height="9" rx="1.5" />
      <path d="m2 4.5 6 4.5 6-4.5" />
    </>
  ),
  schedule: (
    <>
      <circle cx="8" cy="8" r="6.2" />
      <path d="M8 4.5V8l2.5 1.7" />
    </>
  ),
  workflows: (
    <>
      <rect x="1.5" y="2" width="5" height="4.5" rx="1" />
      <rect x="9.5" y="9.5" width="5" height="4.5" rx="1" />
      <path d="M4 6.5v5.2h5.5" />
    </>
  ),
  connections: <path d="M6 2v4M10 2v4M4 6h8v2.5a4 4 0 0 1-8 0zM8 12.5V15" />,
  actions: <path d="m9 1.5-5.5 8H8l-1 5 5.5-8H8z" />,
  menu: <path d="M2 4h12M2 8h12M2 12h12" />,
  close: <path d="m3.5 3.5 9 9m0-9-9 9" />,
  sun: (
    <>
      <circle cx="8" cy="8" r="3" />
      <path d="M8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1" />
    </>
  ),
  moon: <path d="M13.5 9.5A5.8 5.8 0 0 1 6.5 2.5a5.8 5.8 0 1 0 7 7z" />,
  auto: (
    <>
      <circle cx="8" cy="8" r="6" />
      <path d="M8 2v12a6 6 0 0 0 0-12z" fill="currentColor" />
    </>
  ),
  refresh: <path d="M13.5 8A5.5 5.5 0 1 1 11.8 4M12 1.5V4.5H9" />,
  copy: (
    <>
      <rect x="5.5" y="5.5" width="8.5" height="8.5" rx="1.5" />
      <path d="M10.5 2.5h-7A1.5 1.5 0 0 0 2 4v7" />
    </>
  ),
  left: <path d="m10 3-5 5 5 5" />,
  right: <path d="m6 3 5 5-5 5" />,
  plus: <path d="M8 3v10M3 8h10" />,
  minus: <path d="M3 8h10" />,
  fit: <path d="M2 6V2h4M10 2h4v4M14 10v4h-4M6 14H2v-4" />,
}

export type IconName = keyof typeof SHAPES

export function Icon({ name, size = 16 }: { name: IconName; size?: number }): JSX.Element {
  return (
    <svg
      width={size}
      height={size}
      viewBox="0 0 16 16"
      fill="none"
      stroke="currentColor"
      stroke-width="1.5"
      stroke-linecap="round"
      stroke-linejoin="round"
      aria-hidden="true"
    >
      {SHAPES[name]}
    </svg>
  )
}
